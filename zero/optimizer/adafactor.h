#pragma once

#include <memory>

#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer.h"

// Adafactor: Shazeer, Stern 2018, arXiv:1804.04235, as torch.optim.Adafactor. For a parameter p
// with gradient g, in step t (from 1), where mean() is over elements and rms() its root for
// squares:
//
//   w = t^beta2_decay                                       the weight of the new gradient
//   matrix: row = (1 - w) row + w mean(g^2 of a row)        one number for each row
//           column = (1 - w) column + w mean(g^2 of a column)
//           v = row column / max(mean(row), epsilon1)
//   else:   v = (1 - w) v + w g^2
//   u = g / max(sqrt(v), epsilon1)
//   step = max(epsilon2, rms(p)) min(1, 1 / (rate sqrt(t))) u / max(1, rms(u) / clip)
//   p = (1 - rate weight_decay) p - rate step
//
// PyTorch's epsilon1 None depends on the parameter's dtype; here it is always that of f32.
//
// The second moments (row and column, or v) are small, so every rank has those of all parameters,
// in f32 on its device, and computes the same from the gathered gradients.
// Nothing is sent but these gradients, in f32, and the sums of squares of the masters, which are
// exact. Means are computed on whole rows and columns, in an order that depends on the shape alone.
// So the bits do not depend on the stage, the ranks, the offload or the threads. On an accelerator
// they are those of its kernels.
//
// A step takes memory for the gradients of one unit, and for one copy of its largest parameter.
namespace zg::zero {

/// For parameters of at most two axes.
ZG_API std::shared_ptr<const Optimizer> adafactor(const AdafactorOptions& options = {});

}  // namespace zg::zero
