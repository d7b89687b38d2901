#include "tests/fakes/level_zero/program.h"

#include <dlfcn.h>

#include <mutex>
#include <stdexcept>

#include "tests/fakes/level_zero/compiler.h"

namespace zg::test_driver {
namespace {

template <class T>
T symbol(void* library, const std::string& name) {
  void* const address = dlsym(library, name.c_str());
  if (!address) throw std::runtime_error("compiled module lacks " + name);
  return reinterpret_cast<T>(address);
}

}  // namespace

Program::Program(std::span<const std::byte> spirv, const std::vector<KernelSignature>& kernels,
                 bool rounded) {
  // Modules with the same code share their libraries, so only one Program at a time loads them.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const std::vector<std::string> files = compiled_copies(spirv, kernels, rounded, copies);
  for (unsigned i = 0; i < copies; ++i) {
    Copy& copy = copies_[i];
    copy.library = dlopen(files[i].c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!copy.library) throw std::runtime_error(dlerror());
    copy.running = symbol<zg_item**>(copy.library, "zg_item");
    // The symbol is absent if no kernel of the module has barriers.
    if (void* const place = dlsym(copy.library, "zg_hooks")) *static_cast<Hooks*>(place) = hooks;
    for (const KernelSignature& kernel : kernels) {
      copy.kernels[kernel.name] = {
          .meets = *symbol<const char*>(copy.library, "zg_meets_" + kernel.name) != 0,
          .item = symbol<void (*)(void**)>(copy.library, "zg_item_" + kernel.name),
          .row = symbol<void (*)(void**)>(copy.library, "zg_row_" + kernel.name),
          .poison = symbol<void (*)()>(copy.library, "zg_poison_" + kernel.name),
      };
    }
  }
}

Program::~Program() {
  for (Copy& copy : copies_) {
    if (copy.library) dlclose(copy.library);
  }
}

const Program::Kernel& Program::kernel(unsigned copy, const std::string& name) const {
  return copies_[copy].kernels.at(name);
}

}  // namespace zg::test_driver
