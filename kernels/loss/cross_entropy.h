#pragma once

#include "zerograd/kernels/kernel.h"

namespace zg {

/// loss[n] = log_sum[n] - logits[n, targets[n]], 0 where targets[n] == ignore_index.
struct CrossEntropyForward {
  Tensor logits;   ///< [N, V] f64 | f32 | bf16 | f16
  Tensor targets;  ///< [N] i32 | i64; outside [0, V) and not ignore_index: ShapeError
  Tensor loss;     ///< [N] out, accumulator dtype
  Tensor log_sum;  ///< [N] out, accumulator dtype: log of the sum of exponentials
  int64_t ignore_index = -1;
};
/// dlogits = (softmax(logits) - onehot(targets)) * dloss[n]; 0 rows where ignored.
struct CrossEntropyBackward {
  Tensor logits, targets, log_sum;
  Tensor dloss;    ///< [N] accumulator dtype
  Tensor dlogits;  ///< [N, V] out, may be logits
  int64_t ignore_index = -1;
};

/// The loss on logits = x weight^T, which never exist as a whole. The gradients are computed while
/// the logits of some rows exist, so that logits are not computed twice. Hsu et al. 2024, "Liger
/// Kernel", arXiv:2410.10989, section 3.2. Scratch is 16 MiB of logits for a loss alone, made by
/// chunks of columns with an online log-sum-exp; with a gradient it is all logits of some rows, 40
/// MiB (twice that in f64; one row if that is longer), and what a chunk's gradient takes in x's
/// dtype.
struct ProjectionCrossEntropy {
  Tensor x;        ///< [N, C] f64 | f32 | bf16 | f16
  Tensor weight;   ///< [V, C] same dtype
  Tensor targets;  ///< [N] i32 | i64; outside [0, V) and not ignore_index: ShapeError
  Tensor loss;     ///< [N] out, accumulator dtype
  Tensor dx;       ///< [N, C] out, accumulator dtype; may be absent
  Tensor dweight;  ///< [V, C] out, accumulator dtype; may be absent
  /// dx and dweight are of gradient_factor * sum(loss); the gradient of a logit is rounded to x's
  /// dtype, and with a factor f16 keeps more of its small values.
  double gradient_factor = 1.0;
  int64_t ignore_index = -1;
};
ZG_API void validate(const CrossEntropyForward&);
ZG_API void validate(const CrossEntropyBackward&);
ZG_API void validate(const ProjectionCrossEntropy&);
inline std::vector<Operand> operands(const CrossEntropyForward& a) {
  return {{"logits", a.logits},
          {"targets", a.targets},
          {"loss", a.loss, Operand::out},
          {"log_sum", a.log_sum, Operand::out}};
}
inline std::vector<Operand> operands(const CrossEntropyBackward& a) {
  return {{"logits", a.logits},
          {"targets", a.targets},
          {"log_sum", a.log_sum},
          {"dloss", a.dloss},
          {"dlogits", a.dlogits, Operand::out}};
}
inline std::vector<Operand> operands(const ProjectionCrossEntropy& a) {
  return {{"x", a.x},
          {"weight", a.weight},
          {"targets", a.targets},
          {"loss", a.loss, Operand::out},
          {"dx", a.dx, Operand::out},
          {"dweight", a.dweight, Operand::out}};
}

namespace kernels {
extern ZG_API Kernel<CrossEntropyForward> cross_entropy_forward;
extern ZG_API Kernel<CrossEntropyBackward> cross_entropy_backward;
extern ZG_API Kernel<ProjectionCrossEntropy> projection_cross_entropy;
}  // namespace kernels

}  // namespace zg
