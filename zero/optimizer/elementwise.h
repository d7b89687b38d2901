#pragma once

#include <memory>

#include "zerograd/zero/optimizer.h"

// The optimizers whose steps are one kernel (kernels/optimizer/optimizer.h has their formulas).
namespace zg::zero {

struct AdamOptions {
  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f;
  bool decoupled = true;  ///< AdamW; false: Adam, which adds weight decay to the gradients
  float rate = 1.0f;      ///< a multiple of the step's rate
};
ZG_API std::shared_ptr<const Optimizer> adam(const AdamOptions& options = {});

struct LionOptions {
  float beta1 = 0.9f, beta2 = 0.99f;
  bool decoupled = true;
};
ZG_API std::shared_ptr<const Optimizer> lion(const LionOptions& options = {});

struct SgdOptions {
  float momentum = 0.0f;   ///< 0: no state is kept for it
  float dampening = 0.0f;  ///< the share of a gradient that the momentum ignores
  bool nesterov = false;
  bool decoupled = false;
};
ZG_API std::shared_ptr<const Optimizer> sgd(const SgdOptions& options = {});

}  // namespace zg::zero
