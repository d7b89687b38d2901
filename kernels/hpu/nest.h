#pragma once

#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/runtime/shape.h"

namespace zg::hpu {

/// A loop nest over the axes of a shape, with the strides of several operands, in the form that
/// nest.clh reads: the innermost axis comes first. Axes of extent 1 are dropped, and neighbouring
/// axes merged if they are contiguous in every operand.
template <size_t operands>
struct Nest {
  int32_t rank = 0;
  int64_t numel = 1;
  Long8 extents, strides[operands];

  Nest(const Shape& shape, const Strides (&of)[operands]) : numel(shape.numel()) {
    static_assert(Shape::max_rank <= 8);
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      if (shape[axis] == 1) continue;
      bool merges = rank > 0;
      for (size_t k = 0; k < operands && merges; ++k)
        merges = of[k][static_cast<size_t>(axis)] == strides[k].v[rank - 1] * extents.v[rank - 1];
      if (merges) {
        extents.v[rank - 1] *= shape[axis];
        continue;
      }
      extents.v[rank] = shape[axis];
      for (size_t k = 0; k < operands; ++k) strides[k].v[rank] = of[k][static_cast<size_t>(axis)];
      ++rank;
    }
  }
};

}  // namespace zg::hpu
