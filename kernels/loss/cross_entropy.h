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
/// dlogits = (softmax(logits) - onehot(targets)) * dloss[n]; rows of ignored targets are 0.
struct CrossEntropyBackward {
  Tensor logits, targets, log_sum;
  Tensor dloss;    ///< [N] accumulator dtype
  Tensor dlogits;  ///< [N, V] out, may be logits
  int64_t ignore_index = -1;
};

/// The loss of logits = x weight^T. The logits are computed for a block of rows at a time and are
/// never in memory as a whole. The gradients are computed from the same block, so that no logits
/// are computed twice. Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989, section 3.2. The scratch
/// without gradients is one chunk of 16 MiB of logits, with an online log-sum-exp over chunks of
/// columns. With gradients it is all logits of a block of rows, 40 MiB (80 MiB in f64; more if one
/// row is longer), and a chunk of gradients in x's dtype. On CUDA a block has at least 4096 rows,
/// of all columns, or 16 MiB of logits (projection_chunks.h), which the gradients overwrite.
struct ProjectionCrossEntropy {
  Tensor x;        ///< [N, C] f64 | f32 | bf16 | f16
  Tensor weight;   ///< [V, C] same dtype; without gradients also bf16 or f16 while x is f32
  Tensor targets;  ///< [N] i32 | i64; outside [0, V) and not ignore_index: ShapeError
  Tensor loss;     ///< [N] out, accumulator dtype
  Tensor dx;       ///< [N, C] out, accumulator dtype; may be absent
  Tensor dweight;  ///< [V, C] out, accumulator dtype; may be absent
  /// dx and dweight are the gradients of gradient_factor * sum(loss). The gradient of a logit is
  /// rounded to x's dtype; with a large factor fewer small values are lost in f16.
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

/// The products of the logits and of the gradients.
ZG_API void adjust_count(OpCount&, const ProjectionCrossEntropy&);

namespace kernels {
extern ZG_API Kernel<CrossEntropyForward> cross_entropy_forward;
extern ZG_API Kernel<CrossEntropyBackward> cross_entropy_backward;
extern ZG_API Kernel<ProjectionCrossEntropy> projection_cross_entropy;
}  // namespace kernels

}  // namespace zg
