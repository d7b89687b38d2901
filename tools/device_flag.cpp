#include "tools/device_flag.h"

#include "runtime/error.h"
#include "tools/values.h"

namespace zg::tools {

Flag device_flag(Device::Type& type) {
  return {{"--device"},
          "cpu|cuda",
          "where ranks compute; of GPUs rank R takes the R-th, in turns [cpu]",
          [&type](const std::string& name, const std::string& value) {
            if (value.starts_with("hpu"))
              throw Unsupported(name + " " + value + ": this version has no hpu backend; try " +
                                name + " cpu");
            // cpu:0 and cuda:0 are the first rank's.
            const size_t choice = parse_choice(name, value, {"cpu", "cuda", "cpu:0", "cuda:0"});
            type = choice % 2 == 0 ? Device::Type::cpu : Device::Type::cuda;
          }};
}

void require_device(Device::Type type) {
  if (type != Device::Type::cuda) return;
  if (const std::string why = Device::cuda_absence(); !why.empty())
    throw Unsupported("--device cuda: " + why + "; try --device cpu");
}

}  // namespace zg::tools
