#include "zerograd/kernels/hpu/modules.h"

#include <algorithm>

// The table of modules. The build generates an assembly file with this table and the modules.
extern "C" const zg::hpu::EmbeddedModule zg_hpu_modules[], zg_hpu_modules_end[];

namespace zg::hpu {

std::span<const EmbeddedModule> every_module() { return {zg_hpu_modules, zg_hpu_modules_end}; }

const EmbeddedModule* find_module(std::string_view name) {
  const auto modules = every_module();
  const auto found = std::ranges::find(modules, name, &EmbeddedModule::name);
  return found == modules.end() ? nullptr : &*found;
}

}  // namespace zg::hpu
