#include <doctest/doctest.h>

#include "tests/fakes/cuda/launch.h"
#include "tests/support/op_case.h"
#include "tests/support/scoped_variable.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/runtime/cuda/cublaslt.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/launches.h"

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
      {"rows not aligned to 16 bytes", false, DType::bf16, DType::bf16, 16, 23},
      {"gaps between rows", true, DType::bf16, DType::bf16, 16, 24, 40, 32},
      {"gaps, rows not aligned to 16 bytes", false, DType::bf16, DType::bf16, 16, 24, 40, 25},
      {"a bias of another dtype than c", false, DType::bf16, DType::f32},
      {"K is 0", false, DType::bf16, DType::bf16, 16, 24, 0},
      {"a problem that the library refuses", false, DType::bf16, DType::bf16, 2},
  };
  for (const LtCase& c : cases) {
    CAPTURE(c.name);
    Matmul m = product(c, device);
    if (c.activation != Activation::none)  // pre_activation may have any shape of M x N elements
      m.pre_activation = Tensor::empty({2, c.M / 2, c.N}, c.out, device);
    const int64_t before = emulator::cublaslt_products();
    {
      const ScopedVariable wish("ZG_CUDA_MATMUL", "cublaslt");
      kernels::matmul(m, device.compute());
      kernels::matmul(m, device.compute());  // with the algorithm that the first call chose
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

TEST_CASE("matmul's row_sums come from cuBLASLt where it has an algorithm, else from reduce" *
          doctest::test_suite("every device")) {
  struct Case {
    const char* name;
    bool by_library;       // the product
    bool sums_by_library;  // row_sums
    DType dtype = DType::bf16, out = DType::f32, sums = DType::f32;
    int64_t M = 24, N = 16, K = 40;
  };
  const Case cases[] = {
      {"bf16, gradients in f32", true, true},
      {"bf16, all in bf16", true, true, DType::bf16, DType::bf16, DType::bf16},
      {"f16", true, true, DType::f16},
      {"f32", true, true, DType::f32},
      {"sums of another dtype", true, false, DType::bf16, DType::f32, DType::bf16},
      {"no algorithm with sums", true, false, DType::bf16, DType::f32, DType::f32, 24, 8},
      {"rows not aligned to 16 bytes", false, false, DType::bf16, DType::f32, DType::f32, 23},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    const Device device = Device::cuda(0, {.count_launches = true});
    const Tensor a = random_tensor({c.K, c.M}, c.dtype, device, 1);
    const Tensor b = random_tensor({c.K, c.N}, c.dtype, device, 2);
    std::vector<double> expected(static_cast<size_t>(c.M)), values = a.to_doubles();
    for (size_t i = 0; i < values.size(); ++i) expected[i % expected.size()] += values[i];
    Matmul m{.a = a, .b = b, .M = c.M, .N = c.N, .K = c.K, .transpose_a = true};
    Tensor product;
    for (const char* wish : {"cublaslt", "cublaslt", "own"}) {
      CAPTURE(wish);
      const bool wants_library = std::string(wish) == "cublaslt";
      const ScopedVariable variable("ZG_CUDA_MATMUL", wish);
      m.c = random_tensor({c.M, c.N}, c.out, device, 3);
      m.row_sums = random_tensor({c.M}, c.sums, device, 4);
      const LaunchCounts before = device.launches()->counts();
      const int64_t products = emulator::cublaslt_products();
      kernels::matmul(m, device.compute());
      const LaunchCounts counts = device.launches()->counts().since(before);
      CHECK(emulator::cublaslt_products() - products == (c.by_library && wants_library ? 1 : 0));
      const bool reduces = !(c.sums_by_library && wants_library);
      CHECK(counts.launches() == (reduces ? 2 : 1));
      const int64_t elements = size_of(c.dtype) * c.M * c.K;
      CHECK(counts.bytes() == elements + size_of(c.dtype) * c.K * c.N + m.c.bytes() +
                                  m.row_sums.bytes() + (reduces ? elements : 0));
      CHECK(excess(m.row_sums, expected, 1e-4, 2.0 * unit_roundoff(c.sums)) < 1.0);
      if (product) CHECK(excess(m.c, product.to_doubles(), 1e-4, 2.0 * unit_roundoff(c.out)) < 1.0);
      product = m.c;
    }
  }
}

TEST_CASE("where cuBLASLt fails with any status, the project's kernels compute the product" *
          doctest::test_suite("every device")) {
  constexpr int execution_failed = 13, internal_error = 14;
  const std::pair<const char*, int> failures[] = {
      {"cublasLtMatmulAlgoGetHeuristic", internal_error}, {"cublasLtMatmul", execution_failed}};
  int64_t N = 32;  // a product that no other test has: the choice is kept
  for (const auto& [call, status] : failures) {
    CAPTURE(call);
    const Device device = Device::cuda(0, {.count_launches = true});
    const Matmul m = product({"", false, DType::bf16, DType::bf16, 16, N += 8, 40}, device);
    std::vector<double> expected;
    for (const char* wish : {"own", "cublaslt", "cublaslt"}) {
      CAPTURE(wish);
      const ScopedVariable variable("ZG_CUDA_MATMUL", wish);
      const int64_t products = emulator::cublaslt_products();
      const LaunchCounts before = device.launches()->counts();
      kernels::matmul(m, device.compute());
      CHECK(emulator::cublaslt_products() == products);
      CHECK(device.launches()->counts().since(before).launches() == 1);
      if (expected.empty()) {
        expected = m.c.to_doubles();
        emulator::plant_failure(call, status);  // the first call of the library
      }
      CHECK(m.c.to_doubles() == expected);
    }
  }
}

TEST_CASE("row_sums of cuBLASLt repeat their bits, whichever algorithm its heuristic prefers" *
          doctest::test_suite("every device")) {
  const ScopedVariable wish("ZG_CUDA_MATMUL", "cublaslt");
  const ScopedVariable halves("ZG_EMULATOR_CUBLASLT_FIRST", "2");  // cuts K, where it may
  const Device device = Device::cuda();
  const int64_t M = 488, N = 480, K = 480;  // large enough for a workspace
  const Tensor a = random_tensor({K, M}, DType::f32, device, 1);
  std::vector<double> sums[2];
  for (std::vector<double>& values : sums) {
    const Matmul m{.a = a,
                   .b = random_tensor({K, N}, DType::f32, device, 2),
                   .c = Tensor::empty({M, N}, DType::f32, device),
                   .M = M,
                   .N = N,
                   .K = K,
                   .transpose_a = true,
                   .row_sums = Tensor::empty({M}, DType::f32, device)};
    kernels::matmul(m, device.compute());
    values = m.row_sums.to_doubles();
  }
  CHECK(sums[0] == sums[1]);
}

TEST_CASE("ZG_CUDA_MATMUL is own or cublaslt" * doctest::test_suite("every device")) {
  CHECK(cuda::describe_matmul() == "own matmul (ZG_CUDA_MATMUL=own)");
  const ScopedVariable wish("ZG_CUDA_MATMUL", "cublas");
  CHECK_THROWS_WITH_AS(cuda::cublaslt(),
                       "ZG_CUDA_MATMUL is 'cublas'; expected own, cublaslt or unset (cublaslt "
                       "where installed)",
                       ConfigError);
}
