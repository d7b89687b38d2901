#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "zerograd/runtime/comm.h"
#include "zerograd/runtime/mesh.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/storage.h"

namespace zg::zero {

class Snapshot;

/// Of all gradients folded since the last step, over all ranks, as they were added up: not the
/// mean.
struct GradientSummary {
  double sum_of_squares = 0.0;  ///< of the finite ones; exact, so order cannot matter
  /// The first parameter in store order with an infinity or NaN.
  std::optional<std::string> non_finite;
};
/// `mesh` is null when the data axis is all there is. Over a mesh the whole model's: what several
/// tensor ranks have is counted once, and the first stage with such a parameter names it.
GradientSummary summarise(std::span<const Storage> storages, const ParameterStore& store,
                          const Config& config, const Device& device, Communicator& comm,
                          const Mesh* mesh);

/// The one factor that gradients are multiplied by: 1 / (micro_batches * loss_scale), and for a
/// norm above clip_norm > 0 also clip_norm / (norm + 1e-6), as torch.nn.utils.clip_grad_norm_ has
/// it.
ZG_API float gradient_scale(double norm, int64_t micro_batches, float clip_norm,
                            double loss_scale = 1.0);

struct OptimizerStep {
  float gradient_scale;
  float rate;
  Betas betas;
  int64_t step;  ///< counts from 1, skipped ones not included
  bool skipped = false;
};
/// AdamW over what the stage leaves to this rank; then whole values are gathered from their owners.
/// A parameter without a gradient takes part with a zero one. A skipped step changes nothing, but
/// makes the same exchanges: memory and wire do not depend on what the gradients hold. What a
/// snapshot (null: there is none) has yet to read is overwritten after that.
void update(std::span<Storage> storages, const OptimizerStep& step, const Config& config,
            const Device& device, Communicator& comm, Snapshot* snapshot = nullptr);

}  // namespace zg::zero
