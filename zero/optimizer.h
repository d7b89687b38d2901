#pragma once

#include <cstdint>
#include <span>

#include "zero/config.h"
#include "zero/unit_storage.h"

namespace zg::zero {

/// Of all gradients folded since the last step, as they were added up: not the mean.
struct GradientSummary {
  double sum_of_squares = 0.0;            ///< of the finite ones; exact, so order cannot matter
  const Parameter* non_finite = nullptr;  ///< the first in store order with an infinity or NaN
};
GradientSummary summarise(std::span<const UnitStorage> units, int64_t parameters,
                          const Device& device);

/// The one factor that gradients are multiplied by: 1 / micro_batches, and for a norm above
/// clip_norm > 0 also clip_norm / (norm + 1e-6), as torch.nn.utils.clip_grad_norm_ has it.
ZG_API float gradient_scale(double norm, int64_t micro_batches, float clip_norm);

struct OptimizerStep {
  AdamOptions adam;
  float gradient_scale;
  float rate;
  int64_t step;  ///< counts from 1, skipped ones not included
};
/// AdamW over the unit's shard. A parameter without a gradient takes part with a zero one.
void update(UnitStorage& unit, const OptimizerStep& step, Stream& stream);

}  // namespace zg::zero
