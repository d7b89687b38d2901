#pragma once

#include "zerograd/runtime/shape.h"

namespace zg {

/// The extents before, along and behind an axis, each as one number.
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

/// How a contiguous tensor is read or written where indices choose the place along `axis`: each
/// element lies at a place of the other axes plus index * along.
struct IndexedStrides {
  Strides others{};   ///< 0 along the axis
  int64_t along = 0;  ///< the axis's own

  static IndexedStrides of(const Shape& shape, int axis) {
    IndexedStrides strides{.others = broadcast_strides(shape, shape)};
    int64_t& own = strides.others[static_cast<size_t>(shape.axis(axis))];
    strides.along = own;
    own = 0;
    return strides;
  }
};

}  // namespace zg
