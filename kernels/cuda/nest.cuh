#pragma once

#include "zerograd/kernels/cuda/tile.cuh"
#include "zerograd/runtime/shape.h"

namespace zg::cuda {

/// Several strided operands over one index space, for a kernel that is given a flat index. Axes of
/// extent 1 are dropped and neighbours merged where every operand allows it, so that equal shapes
/// become one axis.
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

  /// Element `index` of the row-major order lies at offsets[k] of operand k.
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
