#pragma once

#include "zerograd/autograd/tape.h"

// For all losses that are means over targets, including those where each rank has some columns of
// the logits.
namespace zg {

/// The targets as one row, i32 or i64. Throws unless they have x's leading shape and device.
Tensor flat_targets(const char* op, const char* name, const Tensor& x, const Tensor& targets);
/// The mean of the rows' losses over `count` rows, a scalar.
Tensor mean_loss(const Tensor& loss, const Tensor& count, Stream& stream);
/// The number of targets that are not ignored, as a scalar on the device, so the host does not wait
/// for it.
Tensor count_of(const Tensor& targets, int64_t ignore_index, DType dtype, Stream& stream);

/// The factor of the gradient of a logit, whose absolute value is at most 1, while it is held in
/// x's dtype. It is a power of two, so it changes only bits that f16 would lose below 2^-14.
double gradient_factor(DType dtype);
/// The divisor that makes the gradients of factor * sum(losses) those of the mean. Without any
/// target they are zeros and stay zeros, as in PyTorch.
Tensor gradient_divisor(const Tensor& count, double factor, Stream& stream);
/// Backward of a loss that made the gradients of inputs 0 and 1 in forward. Saved: these gradients
/// and their divisor. They are divided, multiplied by the gradient of the loss and accumulated.
void backward_of_early_gradients(const BackwardPass& pass);

}  // namespace zg
