#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

#include "tests/kernels/every_kernel.h"
#include "tests/kernels/guarded_call.h"
#include "tests/support/listener.h"
#include "tests/support/tested_type.h"

#ifdef ZG_TEST_HPU
const zg::Device::Type zg::testing::tested_type = zg::Device::Type::hpu;
#else
const zg::Device::Type zg::testing::tested_type = zg::Device::Type::cuda;
#endif

namespace {

using namespace zg;
using namespace zg::testing;

/// Wraps a kernel's function for accelerators. Between install() and remove() each output has guard
/// bytes around it.
template <class Args>
class GuardedSlot {
 public:
  static void install(Kernel<Args>& kernel) {
    name = kernel.name;
    own = slot_of(kernel);
    if (own) slot_of(kernel) = call;
  }
  static void remove(Kernel<Args>& kernel) { slot_of(kernel) = own; }

 private:
  static typename Kernel<Args>::Function& slot_of(Kernel<Args>& kernel) {
    return kernel[tested_type].function;
  }
  static void call(const Args& args, Workspace workspace, Stream& stream) {
    for (const std::string& damage : guarded_call<Args>(own, name, args, workspace, stream))
      FAIL_CHECK(damage);
  }

  static inline typename Kernel<Args>::Function own = nullptr;
  static inline const char* name = nullptr;
};

// Guards wait after each call, so tests of queues, ranks and engines do not use them.
bool is_of_kernels(const std::filesystem::path& file) {
  const std::set<std::string> others = {"attention_bits_test.cpp", "hopper_test.cpp",
                                        "matmul_tiles_test.cpp",   "matmul_wide_tiles_test.cpp",
                                        "norm_widths_test.cpp",    "tensor_core_test.cpp",
                                        "variant_test.cpp"};
  const bool in_kernels = file.string().find("tests/kernels/") != std::string::npos;
  return in_kernels || others.count(file.filename().string()) > 0;
}

/// Installs guards for each test of kernels.
struct Guards : Listener {
  using Listener::Listener;
  void test_case_start(const doctest::TestCaseData& test) override {
    if (!is_of_kernels(test.m_file.c_str())) return;
    for_every_kernel([]<class Args>(Kernel<Args>& kernel) { GuardedSlot<Args>::install(kernel); });
    guards_installed = true;
  }
  void test_case_end(const doctest::CurrentTestCaseStats&) override {
    if (!guards_installed) return;
    for_every_kernel([]<class Args>(Kernel<Args>& kernel) { GuardedSlot<Args>::remove(kernel); });
    guards_installed = false;
  }
};
REGISTER_LISTENER("guards", 1, Guards);

}  // namespace

#ifndef ZG_TEST_GPU
/// Without a GPU: from the arena, between holes, which AddressSanitizer watches.
std::shared_ptr<void> arena_memory(const Device& device, size_t bytes) {
  const auto tensor =
      std::make_shared<Tensor>(Tensor::empty({static_cast<int64_t>(bytes)}, DType::u8, device));
  return {tensor, tensor->raw()};
}
#endif

// From the folders with CPU tests it runs only the tests of the suite "every device".
int main(int count, char** arguments) {
  if (std::getenv("ZG_TEST_EXACT")) {
#ifdef ZG_TEST_GPU
    exact_memory = cuda_memory;
#else
    exact_memory = arena_memory;
#endif
  }
  doctest::Context context(count, arguments);
  context.addFilter("test-suite", "every device");
  return context.run();
}
