#include "zerograd/runtime/cuda/library.h"

#include <dlfcn.h>

namespace zg::cuda {

Library::Library(const std::vector<std::string>& names) {
  for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"})
    for (const std::string& name : names) {
      handle_ = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_) {
        absence_.clear();
        return;
      }
      if (absence_.empty()) absence_ = dlerror();
    }
}

void* Library::symbol(const char* name) const { return handle_ ? dlsym(handle_, name) : nullptr; }

}  // namespace zg::cuda
