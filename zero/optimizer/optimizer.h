#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/states/storage.h"

namespace zg::zero {

class Snapshot;

/// Statistics of the gradients of all ranks since the last step, which are accumulated and not
/// averaged.
struct GradientSummary {
  double sum_of_squares = 0.0;  ///< over finite gradients; exact, so it does not depend on an order
  /// The first parameter in store order with an infinity or NaN.
  std::optional<std::string> non_finite;
};
/// `mesh` is null when there is only a data axis. Over a mesh the result is the whole model's: a
/// parameter that several tensor ranks have is counted once, and `non_finite` is of the lowest
/// pipeline stage that has one.
GradientSummary summarise(std::span<const Storage> storages, const ParameterStore& store,
                          const Config& config, const Device& device, Communicator& comm,
                          const Mesh* mesh);

/// The factor for all gradients: 1 / (micro_batches * loss_scale). If the norm exceeds clip_norm >
/// 0 it also has clip_norm / (norm + 1e-6), as in torch.nn.utils.clip_grad_norm_.
ZG_API float gradient_scale(double norm, int64_t micro_batches, float clip_norm,
                            double loss_scale = 1.0);

struct OptimizerStep {
  float gradient_scale;
  float rate;
  Betas betas;
  int64_t step;  ///< counts from 1, without skipped steps
  bool skipped = false;
};
/// Runs the optimizer on the states that the ZeRO stage assigns to this rank, then gathers the
/// parameters that stay whole. A parameter without a gradient is updated with a zero gradient. A
/// skipped step changes nothing but has the same collectives, so memory and traffic do not depend
/// on values. If `snapshot` is not null, a state is overwritten only after the snapshot has read
/// it.
void update(std::span<Storage> storages, const OptimizerStep& step, const Config& config,
            const Device& device, Communicator& comm, Snapshot* snapshot = nullptr);

}  // namespace zg::zero
