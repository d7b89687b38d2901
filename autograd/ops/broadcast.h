#pragma once

#include "zerograd/autograd/tape.h"

namespace zg {

/// y = x repeated along the axes in which y is larger.
void expand(const Tensor& x, const Tensor& y, Stream& stream);

/// Adds the gradient that arose in the broadcast shape to an input of shape `shape`: summed over
/// the axes along which the input was repeated.
void accumulate_reduced(const BackwardPass& pass, int input, const Tensor& gradient,
                        const Shape& shape);

}  // namespace zg
