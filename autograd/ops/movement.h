#pragma once

#include <array>

#include "zerograd/autograd/tape.h"

namespace zg {

/// A permutation of axes: axis i of the result is axis order[i] of the operand.
struct AxisOrder {
  int rank = 0;
  std::array<int, Shape::max_rank> order{};

  static AxisOrder swapping(int rank, int a, int b);  ///< negative axes count from the end
  AxisOrder inverse() const;
  bool keeps_place() const;  ///< changes nothing
};

/// A recorded permutation under the name of the op that needs it.
Var permuted(const char* op, const Var& x, const AxisOrder& axes);

/// Elements [begin, end) along an axis; shares memory where they lie in one piece.
Tensor block(const Tensor& x, int axis, int64_t begin, int64_t end, Stream& stream);
/// whole[begin ...] = part along an axis.
void write_block(const Tensor& part, const Tensor& whole, int axis, int64_t begin, Stream& stream);

}  // namespace zg
