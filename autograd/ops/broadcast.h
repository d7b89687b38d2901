#pragma once

#include <array>

#include "autograd/tape.h"

namespace zg {

using Strides = std::array<int64_t, Shape::max_rank>;

/// Element strides of a contiguous tensor of `shape` walked over `extents`, to which it broadcasts:
/// 0 along axes that it lacks or has with extent 1.
Strides broadcast_strides(const Shape& shape, const Shape& extents);

/// y = x repeated along the axes in which y is larger.
void expand(const Tensor& x, const Tensor& y, Stream& stream);

/// Adds the gradient that arose in the broadcast shape to an input of shape `shape`: summed over
/// the axes along which the input was repeated.
void accumulate_reduced(const BackwardPass& pass, int input, const Tensor& gradient,
                        const Shape& shape);

}  // namespace zg
