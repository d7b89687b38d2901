#pragma once

#include <array>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tests/fakes/level_zero/group.h"
#include "tests/fakes/level_zero/spirv.h"

namespace zg::test_driver {

/// A SPIR-V module as machine code of the host. There is a copy for each thread that may run it:
/// each copy has its own current work-item and its own local memory.
class Program {
 public:
  static constexpr unsigned copies = 2;

  struct Kernel {
    bool meets = false;
    void (*item)(void**) = nullptr;
    void (*row)(void**) = nullptr;
    void (*poison)() = nullptr;
  };

  /// Compiles the module, or loads what an earlier process compiled from the same bytes. Unless
  /// `rounded`, divisions of floats are products with a reciprocal. Throws
  /// std::runtime_error with the messages of the compiler.
  Program(std::span<const std::byte> spirv, const std::vector<KernelSignature>& kernels,
          bool rounded);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const Kernel& kernel(unsigned copy, const std::string& name) const;
  zg_item** running(unsigned copy) const { return copies_[copy].running; }

 private:
  struct Copy {
    void* library = nullptr;
    zg_item** running = nullptr;
    std::map<std::string, Kernel> kernels;
  };
  std::array<Copy, copies> copies_;
};

}  // namespace zg::test_driver
