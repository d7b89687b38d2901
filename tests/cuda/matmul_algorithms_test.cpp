#include "zerograd/kernels/matmul/matmul_algorithms.h"

#include <doctest/doctest.h>

#include "tests/fakes/cuda/launch.h"
#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/launches.h"

// The fake cuBLASLt has three algorithms for each product, which add along K, back along K, and
// each half of K; the last takes a workspace. Times are given by the tests.
using namespace zg;
using namespace zg::testing;

namespace {

constexpr uint64_t back_along_k = (uint64_t{1} << 32) + 16, halves_of_k = (uint64_t{2} << 32) + 16;

struct Side {
  int64_t M = 16, N = 24, K = 40;
};

/// A product in f32, whose bits show the order of its sums.
Matmul ordered_product(const Device& device, const Side& side = {}) {
  const auto operand = [&](const Shape& shape, uint64_t seed) {
    return device.type() == Device::Type::meta ? Tensor::empty(shape, DType::f32, device)
                                               : random_tensor(shape, DType::f32, device, seed);
  };
  const Tensor a = operand({side.M, side.K}, 1), b = operand({side.K, side.N}, 2);
  return {.a = a,
          .b = b,
          .c = Tensor::empty({side.M, side.N}, DType::f32, device),
          .M = side.M,
          .N = side.N,
          .K = side.K};
}

/// The first two rows of the product.
std::vector<float> product_values(const Device& device, const Side& side = {}) {
  const Matmul product = ordered_product(device, side);
  kernels::matmul(product, device.compute());
  return product.c.flat(0, 2 * side.N).to_host<float>();
}

/// The same, added along K, back along K, or each half of K.
std::vector<float> sums_in_order(const Device& device, uint64_t order, const Side& side = {}) {
  const Matmul product = ordered_product(device, side);
  const std::vector<float> a = product.a.to_host<float>(), b = product.b.to_host<float>();
  std::vector<float> values;
  for (int64_t m = 0; m < 2; ++m)
    for (int64_t n = 0; n < side.N; ++n) {
      float sums[2] = {};
      for (int64_t step = 0; step < side.K; ++step) {
        const int64_t k = order == 1 ? side.K - 1 - step : step;
        sums[order == 2 && k >= side.K / 2] +=
            a[static_cast<size_t>(m * side.K + k)] * b[static_cast<size_t>(k * side.N + n)];
      }
      values.push_back(order == 2 ? sums[0] + sums[1] : sums[0]);
    }
  return values;
}

std::set<MatmulProblem> planned_problems(const Side& side = {}) {
  const PlannedProducts products;
  const Device device = Device::meta(0, {.count_launches = true}, Device::Type::cuda);
  kernels::matmul(ordered_product(device, side), device.compute());
  return products.found();
}

/// A measurement in which this candidate is the fastest.
MatmulMeasurement fastest_is(int fastest) {
  return {
      .rounds = 3,
      .time = [fastest](const MatmulProblem&, int candidate, const std::function<void()>& launch) {
        launch();
        return candidate == fastest ? 1e-6 : 2e-6;
      }};
}

/// Until its end the device multiplies by these algorithms, of a file of this name.
class AlgorithmsInUse {
 public:
  AlgorithmsInUse(MatmulAlgorithms algorithms, const Device& device) : device_(device) {
    algorithms.path = "F";
    use_matmul_algorithms(std::make_shared<const MatmulAlgorithms>(std::move(algorithms)), device);
  }
  ~AlgorithmsInUse() { use_matmul_algorithms(nullptr, device_); }
  AlgorithmsInUse(const AlgorithmsInUse&) = delete;
  AlgorithmsInUse& operator=(const AlgorithmsInUse&) = delete;

 private:
  const Device device_;
};

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("the fastest algorithm of cuBLASLt is measured, written, read and used bit for bit") {
  const ScopedVariable wish("ZG_CUDA_MATMUL", "cublaslt");
  const Device device = Device::cuda(0, {.count_launches = true});
  const std::set<MatmulProblem> problems = planned_problems();
  REQUIRE(problems.size() == 1);
  const MatmulProblem expected{.M = 16, .N = 24, .K = 40, .lda = 40, .ldb = 24, .ldc = 24};
  CAPTURE(sizes(*problems.begin()));
  CHECK((*problems.begin() == expected));
  const LaunchCounts before = device.launches()->counts();
  const int64_t products = emulator::cublaslt_products();
  MatmulAlgorithms measured = measure_matmul_algorithms(problems, device, fastest_is(1));
  CHECK(emulator::cublaslt_products() - products == 2 * 3);  // candidates, rounds
  for (const LaunchRow& row : device.launches()->counts().since(before).rows)
    CHECK(row.op == "copy");  // of random operands
  REQUIRE(measured.algorithms.size() == 1);
  const MatmulAlgorithm& fastest = measured.algorithms.begin()->second;
  CHECK(fastest.candidate == 1);
  CHECK(fastest.candidates == 2);
  CHECK(fastest.seconds == 1e-6);
  CHECK(fastest.first_seconds == 2e-6);
  CHECK(product_values(device) == sums_in_order(device, 0));
  const TemporaryFolder folder;
  measured.write(folder / "algorithms.json");
  const MatmulAlgorithms read = MatmulAlgorithms::read(folder / "algorithms.json");
  CHECK(read.json() == measured.json());
  CHECK((read.algorithms == measured.algorithms));
  CHECK(read.checksum() == measured.checksum());
  CHECK(read.gpu == measured.gpu);
  {
    const AlgorithmsInUse in_use(read, device);
    CHECK(product_values(device) == sums_in_order(device, 1));
    CHECK(product_values(device) == product_values(device));
  }
  CHECK(product_values(device) == sums_in_order(device, 0));
}

TEST_CASE("among equal times the heuristic's first algorithm is chosen, by the host's clock any") {
  const ScopedVariable wish("ZG_CUDA_MATMUL", "cublaslt");
  const Device device = Device::cuda();
  const auto chosen = [&](const MatmulMeasurement& how) {
    return measure_matmul_algorithms(planned_problems(), device, how).algorithms.begin()->second;
  };
  CHECK(chosen(fastest_is(7)).candidate == 0);
  const MatmulAlgorithm by_clock = chosen({.candidates = 1, .rounds = 2});
  CHECK(by_clock.candidate == 0);
  CHECK(by_clock.candidates == 1);
  CHECK(by_clock.seconds > 0.0);
  CHECK_THROWS_AS(chosen({.candidates = 0}), ConfigError);
}

TEST_CASE("a product that is not in the file takes the heuristic's first algorithm") {
  const ScopedVariable wish("ZG_CUDA_MATMUL", "cublaslt");
  const Device device = Device::cuda();
  const AlgorithmsInUse in_use(measure_matmul_algorithms(planned_problems(), device, fastest_is(1)),
                               device);
  const Side other{.K = 48};
  CHECK(product_values(device, other) == sums_in_order(device, 0, other));
  CHECK(product_values(device) == sums_in_order(device, 1));
}

TEST_CASE("an algorithm may take matmul's workspace and no more") {
  const ScopedVariable wish("ZG_CUDA_MATMUL", "cublaslt");
  const Device device = Device::cuda();
  const Side large{.M = 480, .N = 480, .K = 480};
  const std::set<MatmulProblem> problems = planned_problems(large);
  REQUIRE(problems.size() == 1);
  CHECK(problems.begin()->workspace == int64_t{32} << 20);
  MatmulAlgorithms measured = measure_matmul_algorithms(problems, device, fastest_is(2));
  REQUIRE(measured.algorithms.size() == 1);
  CHECK(measured.algorithms.begin()->second.candidates == 3);
  CHECK(measured.algorithms.begin()->second.words[7] == halves_of_k);
  {
    const AlgorithmsInUse in_use(measured, device);
    CHECK(product_values(device, large) == sums_in_order(device, 2, large));
  }
  MatmulAlgorithms small = measure_matmul_algorithms(planned_problems(), device, fastest_is(1));
  MatmulAlgorithm& algorithm = small.algorithms.begin()->second;
  CHECK(algorithm.words[7] == back_along_k);
  const auto refusal = [&] {
    const AlgorithmsInUse in_use(small, device);
    const std::string first = message_of<FileError>([&] { product_values(device); });
    CHECK(message_of<FileError>([&] { product_values(device); }) == first);
    return first;
  };
  const std::string measure_again = "; try zerograd bench matmul-algorithms, which measures again";
  algorithm.words[7] = halves_of_k;
  CHECK(refusal() ==
        "F: the algorithm of M 16, N 24, K 40, f32 to f32: expected a workspace of at most 0 "
        "bytes, got 1536" +
            measure_again);
  algorithm.words[0] += 1;
  CHECK(refusal() ==
        "F: the algorithm of M 16, N 24, K 40, f32 to f32: cuBLASLt refuses it with status 7" +
            measure_again);
}

TEST_CASE("a product with row_sums that cuBLASLt refuses is measured without them") {
  const ScopedVariable wish("ZG_CUDA_MATMUL", "cublaslt");
  MatmulProblem problem{.M = 24,
                        .N = 8,
                        .K = 40,
                        .transpose_a = true,
                        .lda = 24,
                        .ldb = 8,
                        .ldc = 8,
                        .vector = MatmulProblem::Vector::row_sums};
  CHECK(sizes(problem) == "M 24, N 8, K 40, f32 to f32, a transposed, row_sums");
  const MatmulAlgorithms measured =
      measure_matmul_algorithms({problem}, Device::cuda(), fastest_is(0));
  problem.vector = MatmulProblem::Vector::none;
  REQUIRE(measured.algorithms.size() == 1);
  CAPTURE(sizes(measured.algorithms.begin()->first));
  CHECK((measured.algorithms.begin()->first == problem));
}

TEST_CASE("row_sums are computed apart from the product where that was measured to be faster") {
  const ScopedVariable wish("ZG_CUDA_MATMUL", "cublaslt");
  const Device device = Device::cuda(0, {.count_launches = true});
  const int64_t M = 24, N = 32, K = 40;
  const Matmul m{.a = random_tensor({K, M}, DType::f32, device, 1),
                 .b = random_tensor({K, N}, DType::f32, device, 2),
                 .c = Tensor::empty({M, N}, DType::f32, device),
                 .M = M,
                 .N = N,
                 .K = K,
                 .transpose_a = true,
                 .row_sums = Tensor::empty({M}, DType::f32, device)};
  const Tensor reduced = Tensor::empty({M}, DType::f32, device);
  Matmul reduction = m;
  reduction.row_sums = reduced;
  kernels::reduce(reduce_rows(reduction), device.compute());
  const MatmulProblem problem{.M = M,
                              .N = N,
                              .K = K,
                              .transpose_a = true,
                              .lda = M,
                              .ldb = N,
                              .ldc = N,
                              .vector = MatmulProblem::Vector::row_sums};
  for (const double seconds_of_reduce : {0.5e-6, 1.5e-6}) {
    CAPTURE(seconds_of_reduce);
    const bool apart = seconds_of_reduce < 1e-6;
    const MatmulMeasurement how{
        .rounds = 3,
        .time = [&](const MatmulProblem& p, int candidate, const std::function<void()>& launch) {
          launch();
          return candidate < 0                                 ? seconds_of_reduce
                 : p.vector == MatmulProblem::Vector::row_sums ? 2e-6
                 : candidate == 1 /* adds back along K */      ? 1e-6
                                                               : 3e-6;
        }};
    const MatmulAlgorithms measured = measure_matmul_algorithms({problem}, device, how);
    CHECK(measured.algorithms.size() == 2);
    const MatmulAlgorithm& algorithm = measured.algorithms.at(problem);
    CHECK(algorithm.apart == apart);
    CHECK(algorithm.seconds == (apart ? 1.5e-6 : 2e-6));
    CHECK(algorithm.first_seconds == 2e-6);
    CHECK(contains(measured.json(), "\"apart\"") == apart);
    const AlgorithmsInUse in_use(MatmulAlgorithms::parse(measured.json(), "F"), device);
    const LaunchCounts before = device.launches()->counts();
    kernels::matmul(m, device.compute());
    std::string launches;
    for (const LaunchRow& row : device.launches()->counts().since(before).rows)
      launches += row.kernel + " ";
    CHECK(contains(launches, "reduce") == apart);
    CHECK(contains(launches, "cublasLtMatmul"));
    if (apart) CHECK(same_bits(m.row_sums, reduced));
  }
}

TEST_CASE("algorithms of another GPU or another cuBLASLt are refused") {
  const ScopedVariable wish("ZG_CUDA_MATMUL", "cublaslt");
  const Device device = Device::cuda();
  const MatmulAlgorithms measured =
      measure_matmul_algorithms(planned_problems(), device, fastest_is(1));
  const auto use = [&](const char* gpu, const char* library) {
    return message_of<FileError>([&] {
      MatmulAlgorithms other = measured;
      if (gpu) other.gpu = gpu;
      if (library) other.library = library;
      const AlgorithmsInUse in_use(other, device);
    });
  };
  CHECK(use(nullptr, nullptr) == "nothing was thrown");
  CHECK(use(nullptr, "cuBLASLt 12.9.1") ==
        "F: library: expected 'cuBLASLt 13.0.0', which cuda:0 has, got 'cuBLASLt 12.9.1': "
        "algorithms are those of one GPU and one version of cuBLASLt; try zerograd bench "
        "matmul-algorithms, which measures again");
  CHECK(contains(use("NVIDIA A100, sm_80, 108 multiprocessors", nullptr),
                 "F: gpu: expected '" + measured.gpu + "', which cuda:0 has, got 'NVIDIA A100"));
}

TEST_CASE("algorithms of cuBLASLt are refused on a device that does not multiply by it") {
  const ScopedVariable wish("ZG_CUDA_MATMUL", "own");
  CHECK(contains(message_of<Unsupported>([] { measure_matmul_algorithms({}, Device::cuda()); }),
                 "but cuda:0 multiplies by its own matmul (ZG_CUDA_MATMUL=own)"));
}

TEST_SUITE_END();
