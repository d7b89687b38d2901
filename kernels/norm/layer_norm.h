#pragma once

#include "zerograd/kernels/kernel.h"

namespace zg {

/// sum = x + residual; y = (sum - mean) * rstd * gamma + beta over the last axis.
/// Ba, Kiros, Hinton 2016, arXiv:1607.06450, eq. 4.
struct LayerNormForward {
  Tensor x;            ///< [N, C] f64 | f32 | bf16 | f16
  Tensor residual;     ///< [N, C] or absent, same dtype
  Tensor gamma, beta;  ///< [C] same dtype; beta may be absent
  Tensor y;            ///< [N, C] out
  Tensor sum;          ///< [N, C] out; absent if and only if residual is absent
  Tensor mean, rstd;   ///< [N] out, accumulator dtype; kept for backward
  float epsilon = 1e-5f;
};

/// Gradients with respect to the input of the norm (x, or `sum` if there was a residual).
struct LayerNormBackward {
  Tensor dy, x, gamma;  ///< [N, C], [N, C], [C]
  Tensor mean, rstd;    ///< [N] from the forward pass
  Tensor dsum;  ///< [N, C] or absent: the gradient of `sum` from its other uses; added to dx
  Tensor dx;    ///< [N, C] out; may be dsum
  Tensor dgamma, dbeta;  ///< [C] out, accumulator dtype; either may be absent
  /// The norm's gradient is rounded before dsum is added, as if axpby added it to dx.
  bool rounds_twice = false;
};

/// sum = x + residual; y = sum / sqrt(mean(sum^2) + epsilon) * gamma. Zhang, Sennrich 2019,
/// arXiv:1910.07467, eq. 4.
struct RmsNormForward {
  Tensor x, residual, gamma;  ///< [N, C], [N, C] or absent, [C]
  Tensor y;                   ///< [N, C] out
  Tensor sum;                 ///< [N, C] out; absent if and only if residual is absent
  Tensor rstd;                ///< [N] out, accumulator dtype
  float epsilon = 1e-5f;
};
struct RmsNormBackward {
  Tensor dy, x, gamma, rstd;
  Tensor dsum, dx;  ///< as in LayerNormBackward
  Tensor dgamma;    ///< [C] out, accumulator dtype; may be absent
  bool rounds_twice = false;
};

/// The same norm as a LayerNorm without mean and beta.
inline LayerNormForward as_layer_norm(const RmsNormForward& a) {
  return {.x = a.x,
          .residual = a.residual,
          .gamma = a.gamma,
          .beta = {},
          .y = a.y,
          .sum = a.sum,
          .mean = {},
          .rstd = a.rstd,
          .epsilon = a.epsilon};
}
inline LayerNormBackward as_layer_norm(const RmsNormBackward& a) {
  return {.dy = a.dy,
          .x = a.x,
          .gamma = a.gamma,
          .mean = {},
          .rstd = a.rstd,
          .dsum = a.dsum,
          .dx = a.dx,
          .dgamma = a.dgamma,
          .dbeta = {},
          .rounds_twice = a.rounds_twice};
}

ZG_API void validate(const LayerNormForward&);
ZG_API void validate(const LayerNormBackward&);
ZG_API void validate(const RmsNormForward&);
ZG_API void validate(const RmsNormBackward&);
inline std::vector<Operand> operands(const LayerNormForward& a) {
  return {{"x", a.x},
          {"residual", a.residual},
          {"gamma", a.gamma},
          {"beta", a.beta},
          {"y", a.y, Operand::out},
          {"sum", a.sum, Operand::out},
          {"mean", a.mean, Operand::out},
          {"rstd", a.rstd, Operand::out}};
}
inline std::vector<Operand> operands(const LayerNormBackward& a) {
  return {{"dy", a.dy},
          {"x", a.x},
          {"gamma", a.gamma},
          {"mean", a.mean},
          {"rstd", a.rstd},
          {"dsum", a.dsum},
          {"dx", a.dx, Operand::out},
          {"dgamma", a.dgamma, Operand::out},
          {"dbeta", a.dbeta, Operand::out}};
}
inline std::vector<Operand> operands(const RmsNormForward& a) {
  return {{"x", a.x},
          {"residual", a.residual},
          {"gamma", a.gamma},
          {"y", a.y, Operand::out},
          {"sum", a.sum, Operand::out},
          {"rstd", a.rstd, Operand::out}};
}
inline std::vector<Operand> operands(const RmsNormBackward& a) {
  return {{"dy", a.dy},
          {"x", a.x},
          {"gamma", a.gamma},
          {"rstd", a.rstd},
          {"dsum", a.dsum},
          {"dx", a.dx, Operand::out},
          {"dgamma", a.dgamma, Operand::out}};
}

namespace kernels {
extern ZG_API Kernel<LayerNormForward> layer_norm_forward;
extern ZG_API Kernel<LayerNormBackward> layer_norm_backward;
extern ZG_API Kernel<RmsNormForward> rms_norm_forward;
extern ZG_API Kernel<RmsNormBackward> rms_norm_backward;
}  // namespace kernels

}  // namespace zg
