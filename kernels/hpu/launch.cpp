#include "kernels/hpu/launch.h"

#include "kernels/hpu/modules.h"
#include "runtime/error.h"

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

}  // namespace zg::hpu
