#include "zerograd/kernels/hpu/launch.h"

#include <algorithm>

#include "zerograd/kernels/hpu/modules.h"
#include "zerograd/runtime/error.h"

namespace zg::hpu {

Code module(const char* file) {
  const EmbeddedModule* found = find_module(file);
  if (!found) throw Unsupported(std::string(file) + ": this build has no such hpu module");
  return {found->name, {found->spirv, found->bytes}};
}

Code module(const char* file, DType dtype, const char* variant) {
  const std::string name =
      std::string(file) + "." + name_of(dtype) + (*variant ? "." : "") + variant;
  const EmbeddedModule* found = find_module(name);
  if (!found)
    throw Unsupported(std::string(file) + ": no hpu kernel for " + name_of(dtype) +
                      "; expected f32 or bf16");
  return {found->name, {found->spirv, found->bytes}};
}

const char* word(const char* op, DType dtype, std::initializer_list<DType> known) {
  if (std::ranges::find(known, dtype) != known.end()) return name_of(dtype);
  std::string expected;
  for (const DType each : known)
    expected += (expected.empty() ? "" : " or ") + std::string(name_of(each));
  throw Unsupported(std::string(op) + ": no hpu kernel for " + name_of(dtype) + "; expected " +
                    expected);
}

}  // namespace zg::hpu
