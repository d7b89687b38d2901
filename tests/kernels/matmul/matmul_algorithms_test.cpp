#include "zerograd/kernels/matmul/matmul_algorithms.h"

#include <limits>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

// Tests of the file of algorithms. tests/cuda/matmul_algorithms_test.cpp tests how they are
// measured and used.
using namespace zg;
using namespace zg::testing;

namespace {

/// Two algorithms, whose problems have no field at its default.
MatmulAlgorithms two_algorithms() {
  const MatmulProblem problem{.M = 1,
                              .N = 2,
                              .K = 3,
                              .batch = 4,
                              .operands = DType::bf16,
                              .sums = DType::f16,
                              .transpose_a = true,
                              .transpose_b = true,
                              .lda = 5,
                              .ldb = 6,
                              .ldc = 7,
                              .stride_a = 8,
                              .stride_b = 9,
                              .stride_c = 10,
                              .vector = MatmulProblem::Vector::bias,
                              .workspace = 11};
  MatmulProblem other = problem;
  other.vector = MatmulProblem::Vector::row_sums;
  return {.gpu = "a GPU",
          .library = "cuBLASLt 1.2.3",
          .algorithms = {{problem, {{1, 2, 3, 4, 5, 6, 7, ~uint64_t{0}}, 1, 8, 1.25e-5, 1.5e-5}},
                         {other, {{9}, 0, 1, 0.1, 0.1, /*apart=*/true}}}};
}

}  // namespace

TEST_CASE("cuBLASLt's algorithms are written to a file and read from it, all fields") {
  const TemporaryFolder folder;
  const MatmulAlgorithms algorithms = two_algorithms();
  write_file(folder / "F", "an older file");
  algorithms.write(folder / "F");
  const MatmulAlgorithms read = MatmulAlgorithms::read(folder / "F");
  CHECK(read.gpu == "a GPU");
  CHECK(read.library == "cuBLASLt 1.2.3");
  const MatmulProblem& problem = read.algorithms.begin()->first;
  CHECK(problem.M == 1);
  CHECK(problem.stride_c == 10);
  CHECK(problem.workspace == 11);
  CHECK((read.algorithms == algorithms.algorithms));
  CHECK(read.path == folder / "F");
  CHECK(read.json() == algorithms.json());
  CHECK(read_file(folder / "F") == algorithms.json());
  CHECK(contains(algorithms.json(), "\"checksum\": \"" + algorithms.checksum() + "\""));
  CHECK(contains(algorithms.json(),
                 "\"algorithm\": \"0000000000000001000000000000000200000000000000030000000000000004"
                 "000000000000000500000000000000060000000000000007ffffffffffffffff\""));
  MatmulAlgorithms others = algorithms;
  others.algorithms.begin()->second.words[3] += 1;
  CHECK(others.checksum() != algorithms.checksum());
  CHECK(sizes(algorithms.algorithms.begin()->first) ==
        "batch 4, M 1, N 2, K 3, bf16 to f16, a transposed, b transposed, lda 5, ldb 6, ldc 7, "
        "bias");
}

TEST_CASE("a damaged file of cuBLASLt's algorithms is refused, whichever byte it is") {
  const std::string text = two_algorithms().json();
  const auto refusal = [](const std::string& damaged) {
    return message_of<FileError>([&] { MatmulAlgorithms::parse(damaged, "F"); });
  };
  CHECK(MatmulAlgorithms::parse(text, "F").json() == text);
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == ' ' || text[i] == '\n') continue;  // between values
    std::string damaged = text;
    damaged[i] = damaged[i] == '1' ? '2' : '1';
    INFO("i ", i, ", ", damaged.substr(i, 20));
    CHECK(contains(refusal(damaged), "F:"));
  }
  const char* const advice = "; try zerograd bench matmul-algorithms, which measures again";
  for (const size_t length : {size_t{0}, text.size() / 2, text.size() - 3}) {
    CHECK(contains(refusal(text.substr(0, length)), "is not JSON: "));
    CHECK(contains(refusal(text.substr(0, length)), advice));
  }
  CHECK(refusal("[]") == std::string("F:1:1: expected a JSON object, got []") + advice);
  CHECK(
      contains(refusal("{\"schema\": \"zerograd.peaks/1\"}"),
               "F: schema: expected zerograd.matmul-algorithms/1, got \"zerograd.peaks/1\"; try"));
  std::string edited = text;
  edited.replace(edited.find("a GPU"), 5, "b GPU");
  CHECK(contains(refusal(edited), ", that of the rest of the file, got " +
                                      two_algorithms().checksum() +
                                      ": the file is damaged, or was edited; try zerograd bench"));
  CHECK(
      contains(message_of<FileError>([] { MatmulAlgorithms::read("/nowhere/F"); }), "/nowhere/F"));
}

TEST_CASE("a wrong value in a file of cuBLASLt's algorithms is refused with the name of its key") {
  // The checksum of the changed file is right, so each value is read.
  const auto refusal = [](const char* key, const auto& change) {
    MatmulAlgorithms algorithms = two_algorithms();
    MatmulProblem problem = algorithms.algorithms.begin()->first;
    MatmulAlgorithm algorithm = algorithms.algorithms.begin()->second;
    change(problem, algorithm);
    algorithms.algorithms = {{problem, algorithm}};
    CHECK_ERROR(FileError, std::string("F: products[0].") + key + ": expected ",
                MatmulAlgorithms::parse(algorithms.json(), "F"));
  };
  refusal("M", [](MatmulProblem& problem, MatmulAlgorithm&) { problem.M = -1; });
  refusal("workspace", [](MatmulProblem& problem, MatmulAlgorithm&) {
    problem.workspace = std::numeric_limits<int64_t>::max();
  });
  refusal("operands",
          [](MatmulProblem& problem, MatmulAlgorithm&) { problem.operands = DType::f64; });
  refusal("candidate",
          [](MatmulProblem&, MatmulAlgorithm& algorithm) { algorithm.candidate = -1; });
  refusal("apart", [](MatmulProblem&, MatmulAlgorithm& algorithm) { algorithm.apart = true; });
  refusal("seconds", [](MatmulProblem&, MatmulAlgorithm& algorithm) { algorithm.seconds = -1.0; });
}

TEST_CASE("cuBLASLt's algorithms are refused on a cpu") {
  const char* const message =
      "matmul algorithms: expected a cuda device, because they are for cuBLASLt, got cpu:0; omit "
      "them";
  CHECK(message_of<Unsupported>([] { use_matmul_algorithms(nullptr, Device::cpu()); }) == message);
  CHECK(message_of<Unsupported>([] { measure_matmul_algorithms({}, Device::cpu()); }) == message);
}
