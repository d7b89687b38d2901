#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "zerograd/runtime/api.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/dtype.h"

// The algorithms with which cuBLASLt multiplies on CUDA devices. The library has several for each
// product, which differ in time and in the order of their sums. By default matmul takes the first
// of the library's heuristic. A program can measure several and later multiply by the fastest:
//
//     PlannedProducts products;
//     plan_ranks(1, program, {.device = {.count_launches = true}, .type = Device::Type::cuda});
//     measure_matmul_algorithms(products.found(), Device::cuda()).write("algorithms.json");
//
//     const auto algorithms =
//         std::make_shared<const MatmulAlgorithms>(MatmulAlgorithms::read("algorithms.json"));
//     run_ranks(8, [&](Communicator& ranks, const Device& device) {
//       use_matmul_algorithms(algorithms, device);
//       program(ranks, device);
//     });
//
// The next measurement may find another algorithm to be the fastest, and then the bits of products
// differ. So a program that must repeat its bits measures once and keeps the file, and all of its
// ranks use the same file. Nothing is measured while a file is used.
namespace zg {

/// A product as matmul describes it to cuBLASLt. The choice of an algorithm depends only on this,
/// the GPU and the version of the library. Names and units are those of Matmul.
struct MatmulProblem {
  enum class Vector : uint8_t { none, bias, row_sums };

  int64_t M = 0, N = 0, K = 0, batch = 1;
  DType operands = DType::f32;  ///< of a and b
  DType sums = DType::f32;      ///< of c
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;                 ///< never 0
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;  ///< 0 for a batch of 1
  Vector vector = Vector::none;
  int64_t workspace = 0;  ///< bytes of scratch memory, the most that an algorithm may take

  auto operator<=>(const MatmulProblem&) const = default;
};
ZG_API const char* name_of(MatmulProblem::Vector vector);  ///< "none", "bias", "row_sums"
/// "M 64, N 48, K 48, bf16 to f32, b transposed, bias".
ZG_API std::string sizes(const MatmulProblem&);

/// An algorithm of cuBLASLt for one product.
struct MatmulAlgorithm {
  /// The bytes of cublasLtMatmulAlgo_t, which the library can restore in the same version (see the
  /// comment of that struct in cublasLt.h).
  std::array<uint64_t, 8> words{};
  int candidate = 0;   ///< its place in the heuristic's order; matmul's default is 0
  int candidates = 1;  ///< the number that were measured
  double seconds = 0.0, first_seconds = 0.0;  ///< of one product; with the default
  /// Only with row_sums: reduce computes them, in a launch of its own, and the product is the one
  /// without row_sums, which has an entry too. `seconds` are those of both launches.
  bool apart = false;

  bool operator==(const MatmulAlgorithm&) const = default;
};

/// Algorithms for the products of one GPU and one version of cuBLASLt, and their file.
struct ZG_API MatmulAlgorithms {
  std::string gpu;      ///< "NVIDIA H200, sm_90, 132 multiprocessors"
  std::string library;  ///< "cuBLASLt 13.0.2"
  std::map<MatmulProblem, MatmulAlgorithm> algorithms;
  std::string path;  ///< for error messages

  /// {"schema":"zerograd.matmul-algorithms/1","gpu":...,"library":...,"products":[{"M":...,
  /// "algorithm":"128 hexadecimal digits",...}],"checksum":"..."}.
  std::string json() const;
  /// XXH3-128 of all but the path, in 32 hexadecimal digits. Tells whether two ranks or two runs
  /// have the same algorithms.
  std::string checksum() const;
  /// `path` names the text in errors. Throws FileError for a damaged or an edited text.
  static MatmulAlgorithms parse(const std::string& text, const std::string& path);
  static MatmulAlgorithms read(const std::string& path);  ///< throws FileError
  /// Replaces an existing file atomically. Throws FileError.
  void write(const std::string& path) const;
};

/// From now on matmul multiplies by these algorithms on the device's GPU, for each Device of this
/// process on it. A product that is not among them has the heuristic's first algorithm. Null: all
/// products have it. Call it while the device is idle. Throws Unsupported for a device that is not
/// cuda or does not multiply by cuBLASLt, FileError for another GPU or version than the file's.
/// matmul throws FileError if the library refuses an algorithm, or if the algorithm takes more
/// workspace than matmul has.
ZG_API void use_matmul_algorithms(std::shared_ptr<const MatmulAlgorithms> algorithms,
                                  const Device& device);

/// While it lives, it collects the products that plans of this thread count as cuBLASLt's: on meta
/// devices that stand for cuda, with DeviceOptions::count_launches. If there are several, only the
/// innermost collects.
class ZG_API PlannedProducts {
 public:
  PlannedProducts();
  ~PlannedProducts();
  PlannedProducts(const PlannedProducts&) = delete;
  PlannedProducts& operator=(const PlannedProducts&) = delete;
  const std::set<MatmulProblem>& found() const { return found_; }
  void add(const MatmulProblem& problem) { found_.insert(problem); }
  static PlannedProducts* current();  ///< of this thread; null: none

 private:
  std::set<MatmulProblem> found_;
  PlannedProducts* const outer_;
};

struct MatmulMeasurement {
  int candidates = 8;  ///< the heuristic's first algorithms, at most 1000
  int rounds = 5;      ///< measurements of each; the median is used
  /// Returns the seconds of one product by a candidate, which `launch` queues; candidate -1 is
  /// reduce, for row_sums. Empty: measured with the host's clock, over enough launches that the
  /// wait at their end does not matter.
  std::function<double(const MatmulProblem& problem, int candidate,
                       const std::function<void()>& launch)>
      time = {};
};

/// Measures algorithms on the device and returns the fastest for each product; the first of the
/// heuristic's order among equals. Operands are random values in memory of their own, which it
/// allocates on the device; launches are not counted. A product that the library refuses is left
/// out. For each with row_sums the product without them and reduce are measured, too, and the
/// faster way is chosen (MatmulAlgorithm::apart). Throws Unsupported as use_matmul_algorithms()
/// does.
ZG_API MatmulAlgorithms measure_matmul_algorithms(const std::set<MatmulProblem>& problems,
                                                  const Device& device,
                                                  const MatmulMeasurement& measurement = {});

}  // namespace zg
