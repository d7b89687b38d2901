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
  /// Those of an index. An index [n] names the same places for all other axes.
  static IndexedStrides of_index(const Shape& index, int axis) {
    return index.rank() == 1 ? IndexedStrides{.along = 1} : of(index, axis);
  }
};

/// The shape of the elements that an index names along an axis: its own, or for an index [n] that
/// of x with n elements along the axis.
inline Shape named_shape(const Shape& index, const Shape& x, int axis) {
  return index.rank() == 1 && x.rank() > 1 ? x.with(axis, index[0]) : index;
}

}  // namespace zg
