#include <doctest/doctest.h>

#include "tests/fakes/cuda/launch.h"
#include "tests/support/op_case.h"
#include "tests/support/scoped_variable.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/runtime/cuda/cublaslt.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct LtCase {
  const char* name;
  bool by_library;
  DType dtype = DType::bf16, out = DType::bf16;
  int64_t M = 16, N = 24, K = 40, ldb = 0;
  Activation activation = Activation::none;
};

Matmul product(const LtCase& c, const Device& device) {
  const int64_t distance = c.ldb ? c.ldb : c.N;
  return {.a = random_tensor({c.M, c.K}, c.dtype, device, 1),
          .b = random_tensor({c.K, distance}, c.dtype, device, 2),
          .c = random_tensor({c.M, c.N}, c.out, device, 3),
          .M = c.M,
          .N = c.N,
          .K = c.K,
          .bias = random_tensor({c.N}, c.dtype, device, 4),
          .activation = c.activation,
          .ldb = c.ldb};
}

}  // namespace

TEST_CASE("products that cuBLASLt accepts use it, and equal those of the project's kernel" *
          doctest::test_suite("every device")) {
  const Device device = Device::cuda();
  const LtCase cases[] = {
      {"bf16", true},
      {"f16", true, DType::f16, DType::f16},
      {"f32", true, DType::f32, DType::f32},
      {"an activation", true, DType::bf16, DType::bf16, 16, 24, 40, 0, Activation::gelu_tanh},
      {"rows off 16 bytes", false, DType::bf16, DType::bf16, 16, 23},
      {"rows apart", true, DType::bf16, DType::bf16, 16, 24, 40, 32},
      {"rows apart, off 16 bytes", false, DType::bf16, DType::bf16, 16, 24, 40, 25},
      {"a bias that is no c", false, DType::bf16, DType::f32},
      {"nothing to add up", false, DType::bf16, DType::bf16, 16, 24, 0},
      {"a problem that the library refuses", false, DType::bf16, DType::bf16, 2},
  };
  for (const LtCase& c : cases) {
    CAPTURE(c.name);
    Matmul m = product(c, device);
    if (c.activation != Activation::none)  // matrices may have any shape
      m.pre_activation = Tensor::empty({2, c.M / 2, c.N}, c.out, device);
    const int64_t before = emulator::cublaslt_products();
    {
      const ScopedVariable wish("ZG_CUDA_MATMUL", "cublaslt");
      kernels::matmul(m, device.compute());
      kernels::matmul(m, device.compute());  // by the choice that was kept
    }
    CHECK(emulator::cublaslt_products() - before == (c.by_library ? 2 : 0));
    const std::vector<double> library = m.c.to_doubles();
    const ScopedVariable wish("ZG_CUDA_MATMUL", "own");
    m.c = Tensor::empty(m.c.shape(), m.c.dtype(), device);
    kernels::matmul(m, device.compute());
    CHECK(emulator::cublaslt_products() - before == (c.by_library ? 2 : 0));
    CHECK(excess(m.c, library, 1e-4, 2.0 * unit_roundoff(c.out)) < 1.0);
  }
}

TEST_CASE("ZG_CUDA_MATMUL is own or cublaslt" * doctest::test_suite("every device")) {
  CHECK(cuda::describe_matmul() == "own matmul (ZG_CUDA_MATMUL=own)");
  const ScopedVariable wish("ZG_CUDA_MATMUL", "cublas");
  CHECK_THROWS_WITH_AS(cuda::cublaslt(),
                       "ZG_CUDA_MATMUL is 'cublas'; expected own or cublaslt, or unset it for "
                       "whichever is there",
                       ConfigError);
}
