#pragma once

#include <utility>

#include "bench/case.h"
#include "bench/op.h"
#include "zerograd/kernels/elementwise/elementwise.h"

// Shared by the rows of ops that work element by element. The product of a case's extents is its
// number of elements.
namespace zg::bench {

/// The work for one element.
struct ElementWork {
  double flops, read_bytes, written_bytes;
};
std::function<Work(DType, const Extents&)> element_work(std::string name, const ElementWork& work);
/// For operands of the case's dtype; `reads` and `writes` are their numbers.
std::function<Work(DType, const Extents&)> element_work(std::string name, double flops, int reads,
                                                        int writes);

/// Lengths around the sizes of vectors and warps, and above the 8192 elements of a CPU task.
inline const std::vector<Extents> tested_lengths = {{1}, {31}, {33}, {1023}, {9001}};

/// The cases of one length.
std::function<std::vector<Extents>(const Sizes&)> elements(int64_t Sizes::*which);

/// Vectors of the case's length, each uniform in its own range.
std::function<std::vector<Tensor>(const Operands&, const Extents&)> variables_in(
    std::vector<std::pair<double, double>> ranges);

/// The error of up to four operations on values below 2 in the accumulator dtype, each with an
/// error of an ulp.
inline const auto few_roundings = roundings(8.0, 8.0);

/// Those that element_ops() times; unary_ops() has the others.
inline constexpr UnaryOp timed_unary_ops[] = {UnaryOp::silu, UnaryOp::sin, UnaryOp::cos,
                                              UnaryOp::erf, UnaryOp::log1p};

Op unary_op(const std::string& name, UnaryOp op);
Op binary_op(const std::string& name, BinaryOp op);

}  // namespace zg::bench
