#pragma once

#include <memory>
#include <optional>
#include <string>

#include "zerograd/runtime/tensor.h"

// The interface between matmul_algorithms.cpp, which is in every build, and matmul_cublaslt.cu.
namespace zg {

struct MatmulAlgorithm;
struct MatmulAlgorithms;
struct MatmulMeasurement;
struct MatmulProblem;

namespace cuda {

/// The GPU of a device, and the library or kernels that multiply on it.
struct MatmulSource {
  std::string gpu, library;
  bool is_cublaslt = false;
};
MatmulSource matmul_source(const Device& device);

/// Sets the algorithms of the index-th GPU. Null: the heuristic's first.
void set_matmul_algorithms(int index, std::shared_ptr<const MatmulAlgorithms> algorithms);

/// Absent if the library has none for the problem. `measurement.time` must not be empty.
std::optional<MatmulAlgorithm> fastest_algorithm(const MatmulProblem& problem, const Device& device,
                                                 const MatmulMeasurement& measurement);

/// Throws the FileError about an algorithm for which cublasLtMatmulAlgoCheck returned `status` and
/// this workspace.
[[noreturn]] void refuse_algorithm(const MatmulAlgorithms& algorithms, const MatmulProblem& problem,
                                   int status, int64_t workspace);

/// Prints that the project's kernels compute a product from now on, because cuBLASLt fails.
void print_refusal(const MatmulProblem& problem, const std::exception& error);

/// Elements with random values from -1 to 1.
Tensor random_elements(int64_t count, DType dtype, const Device& device);

}  // namespace cuda
}  // namespace zg
