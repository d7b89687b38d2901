#pragma once

#include "runtime/shape.h"

namespace zg {

/// How a tensor is walked when `axis` is where indices point.
struct Indexed {
  int64_t outer = 1, extent = 1, inner = 1;  ///< before, along and behind the axis

  static Indexed split(const Shape& shape, int axis) {
    Indexed at;
    axis = shape.axis(axis);
    for (int i = 0; i < axis; ++i) at.outer *= shape[i];
    at.extent = shape[axis];
    for (int i = axis + 1; i < shape.rank(); ++i) at.inner *= shape[i];
    return at;
  }
};

}  // namespace zg
