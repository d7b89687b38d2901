#include "bench/case.h"

#include "bench/operands.h"
#include "zerograd/runtime/error.h"

namespace zg::bench {

Row add(Report& report, const Case& c) {
  try {
    return report.add(c.work, c.make(report.device()));
  } catch (const OutOfMemory&) {
    if (report.device().type() == Device::Type::cpu) throw;
    return report.add_unmeasured(c.work, "does not fit its memory");
  }
}

std::string Rows::shape() const { return by({N, C}); }

Sizes::Sizes(Device::Type type)
    : on_accelerator(type != Device::Type::cpu),
      tokens{on_accelerator ? 65536 : 8192, on_accelerator ? 1024 : 768},
      logits{on_accelerator ? 8192 : 1024, 50257},
      scores{on_accelerator ? 98304 : 12288, 1024},
      hidden((on_accelerator ? 32768 : 4096) * hidden_width),
      flat(int64_t{on_accelerator ? 256 : 32} << 20),
      parameters(on_accelerator ? 800'000'000 : 100'000'000) {}

std::vector<Case> kernel_cases(Device::Type type) {
  const Sizes sizes(type);
  std::vector<Case> all;
  for (const auto& cases :
       {matmul_cases(sizes), attention_cases(sizes), row_cases(sizes), element_cases(sizes)})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

}  // namespace zg::bench
