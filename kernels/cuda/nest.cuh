#pragma once

#include "zerograd/kernels/cuda/tile.cuh"
#include "zerograd/runtime/shape.h"

namespace zg::cuda {

/// A loop nest over the axes of a shape, with the strides of several operands. A kernel turns a
/// flat index into the operands' offsets with locate(). Axes of extent 1 are dropped, and
/// neighbouring axes merged if they are contiguous in every operand, so operands of equal
/// contiguous shapes have one axis.
template <int operands>
struct Nest {
  int rank = 0;
  int64_t numel = 1;
  int64_t extents[Shape::max_rank] = {};
  int64_t strides[Shape::max_rank][operands] = {};

  Nest(const Shape& shape, const Strides (&of)[operands]) : numel(shape.numel()) {
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if (shape[axis] == 1) continue;
      int64_t next[operands];
      for (int k = 0; k < operands; ++k) next[k] = of[k][static_cast<size_t>(axis)];
      bool merges = rank > 0;
      for (int k = 0; k < operands && merges; ++k)
        merges = strides[rank - 1][k] == next[k] * shape[axis];
      if (!merges) extents[rank++] = 1;
      extents[rank - 1] *= shape[axis];
      for (int k = 0; k < operands; ++k) strides[rank - 1][k] = next[k];
    }
  }

  /// Sets offsets[k] to where element `index`, in row-major order, lies in operand k.
  __device__ void locate(int64_t index, int64_t (&offsets)[operands]) const {
    for (int k = 0; k < operands; ++k) offsets[k] = 0;
    for (int axis = rank - 1; axis >= 0; --axis) {
      const int64_t rest = index / extents[axis], at = index - rest * extents[axis];
      index = rest;
      for (int k = 0; k < operands; ++k) offsets[k] += at * strides[axis][k];
    }
  }
};

}  // namespace zg::cuda
