#pragma once

#include "zerograd/runtime/shape.h"

namespace zg {

/// The shape around an axis: the product of the extents before it, its own, and the product of
/// those after.
struct Indexed {
  int64_t outer = 1, extent = 1, inner = 1;

  static Indexed split(const Shape& shape, int axis) {
    Indexed at;
    axis = shape.axis(axis);
    for (int i = 0; i < axis; ++i) at.outer *= shape[i];
    at.extent = shape[axis];
    for (int i = axis + 1; i < shape.rank(); ++i) at.inner *= shape[i];
    return at;
  }
};

/// The strides of a contiguous tensor that is indexed along one axis: an element is at the offset
/// that `others` gives for the other axes, plus index * along.
struct IndexedStrides {
  Strides others{};   ///< 0 along the axis
  int64_t along = 0;  ///< the stride of the axis

  static IndexedStrides of(const Shape& shape, int axis) {
    IndexedStrides strides{.others = broadcast_strides(shape, shape)};
    int64_t& stride = strides.others[static_cast<size_t>(shape.axis(axis))];
    strides.along = stride;
    stride = 0;
    return strides;
  }
};

}  // namespace zg
