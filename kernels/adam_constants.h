#pragma once

namespace zg {

/// The f32 constants of one Adam step. Each is computed in double with + - * / sqrt alone (powers
/// by repeated squaring, no libm) and rounded to f32 once, so every backend and machine starts
/// from the same numbers. kernels/README.md lists the operations that use them.
struct AdamConstants {
  float gradient_scale;
  float l2;           ///< weight decay that joins the gradient; 0 when decoupled
  float beta1, new1;  ///< new1 = 1 - beta1: the weight of the new gradient
  float beta2, new2;  ///< new2 = 1 - beta2
  float unbias2;      ///< 1 / sqrt(1 - beta2^step)
  float epsilon;
  float keep;  ///< 1 - rate * weight_decay; 1 when not decoupled
  float move;  ///< rate / (1 - beta1^step)
};

}  // namespace zg
