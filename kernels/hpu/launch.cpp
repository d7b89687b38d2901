#include "zerograd/kernels/hpu/modules.h"

#include <algorithm>

#include "zerograd/runtime/text/format.h"

namespace zg::hpu {

Code module(const char* file) {
  const EmbeddedModule* found = find_module(file);
  if (!found) raise<Unsupported>("{}: this build has no such hpu module", file);
  return {found->name, {found->spirv, found->bytes}};
}

Code module(const char* file, DType dtype, const char* variant) {
  const std::string name = fmt::format("{}.{}{}{}", file, dtype, *variant ? "." : "", variant);
  const EmbeddedModule* found = find_module(name);
  if (!found) raise<Unsupported>("{}: no hpu kernel for {}; expected f32 or bf16", file, dtype);
  return {found->name, {found->spirv, found->bytes}};
}

const char* word(const char* op, DType dtype, std::initializer_list<DType> known) {
  if (std::ranges::find(known, dtype) != known.end()) return name_of(dtype);
  std::string expected;
  for (const DType each : known)
    expected += (expected.empty() ? "" : " or ") + std::string(name_of(each));
  raise<Unsupported>("{}: no hpu kernel for {}; expected {}", op, dtype, expected);
}

}  // namespace zg::hpu
