#pragma once

#include <cstdint>

#include "zerograd/runtime/api.h"
#include "zerograd/zero/config.h"

namespace zg::zero {

/// The exact number of bytes of model states that one rank holds between steps. The first three
/// fields count elements of parameters without padding; for partitioned states their sum over the
/// ranks is the size of the whole model. `padding` has the bytes that alignment, equal shard sizes
/// and the arena's rounding add.
struct RestingBytes {
  int64_t parameter = 0, gradient = 0, optimizer = 0, padding = 0;
  int64_t total() const { return parameter + gradient + optimizer + padding; }
  bool operator==(const RestingBytes&) const = default;
};

/// Bytes per rank, and the communication volume per step relative to plain data parallelism.
struct ModelStates {
  double parameter = 0.0, gradient = 0.0, optimizer = 0.0;
  double volume = 1.0;
  double total() const { return parameter + gradient + optimizer; }
};

/// The formula of the ZeRO paper, Rajbhandari et al. 2020, arXiv:1910.02054, figure 1 and section
/// 7: for each parameter 2 bytes for the parameter, 2 for its gradient and K for optimizer states.
ZG_API ModelStates paper_states(double parameters, int ranks, int stage, double K = 12.0);

/// The same for this engine: parameters in config.compute, none if zero::rounds_at_use(); gradient
/// accumulators in config.grad_accum, partitioned at every stage; the optimizer's moments in
/// config.optimizer, and master weights in config.optimizer if that differs from config.compute. An
/// optimizer that keeps fewer states of some parameters is counted as if it kept all of all, and
/// states with shapes of their own are not counted. The volume is for steps of one micro-batch.
ZG_API ModelStates our_states(double parameters, int ranks, const Config& config,
                              bool rounds_at_use = false);

}  // namespace zg::zero
