#pragma once

#include "kernels/kernel.h"

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

/// The same on logits = x weight^T, which never exist as a whole: the vocabulary is walked in
/// chunks with an online log-sum-exp, and backward makes each chunk again. Scratch is one chunk of
/// up to 16 MiB in the accumulator dtype; backward has its gradient in x's dtype, too, and dx of
/// its rows in the accumulator when several chunks add to a narrower dx.
struct ProjectionCrossEntropyForward {
  Tensor x;        ///< [N, C] f64 | f32 | bf16 | f16
  Tensor weight;   ///< [V, C] same dtype
  Tensor targets;  ///< [N] i32 | i64
  Tensor loss;     ///< [N] out, accumulator dtype
  Tensor log_sum;  ///< [N] out, accumulator dtype
  int64_t ignore_index = -1;
};
struct ProjectionCrossEntropyBackward {
  Tensor x, weight, targets, log_sum;
  Tensor dloss;    ///< [N] accumulator dtype
  Tensor dx;       ///< [N, C] out; may be absent
  Tensor dweight;  ///< [V, C] out, accumulator dtype; may be absent
  int64_t ignore_index = -1;
};
ZG_API void validate(const CrossEntropyForward&);
ZG_API void validate(const CrossEntropyBackward&);
ZG_API void validate(const ProjectionCrossEntropyForward&);
ZG_API void validate(const ProjectionCrossEntropyBackward&);

namespace kernels {
extern ZG_API Kernel<CrossEntropyForward> cross_entropy_forward;
extern ZG_API Kernel<CrossEntropyBackward> cross_entropy_backward;
extern ZG_API Kernel<ProjectionCrossEntropyForward> projection_cross_entropy_forward;
extern ZG_API Kernel<ProjectionCrossEntropyBackward> projection_cross_entropy_backward;
}  // namespace kernels

}  // namespace zg
