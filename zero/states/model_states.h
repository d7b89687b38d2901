#pragma once

#include <cstdint>

#include "zerograd/runtime/api.h"
#include "zerograd/zero/config.h"

namespace zg::zero {

/// Bytes of model states that one rank holds between steps, exact. The first three count elements
/// of parameters only; for partitioned states the ranks' numbers add up to the model's. `padding`
/// is added by alignment, by equal shard sizes and by the arena's rounding.
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
/// 7: per parameter 2 bytes of value, 2 of gradient and K of optimizer state.
ZG_API ModelStates paper_states(double parameters, int ranks, int stage, double K = 12.0);

/// The same for this engine: values in config.compute; gradient accumulators in grad_accum,
/// partitioned at every stage; two moments and, unless the values are the masters, masters in
/// config.optimizer. The volume is that of one micro-batch a step.
ZG_API ModelStates our_states(double parameters, int ranks, const Config& config);

}  // namespace zg::zero
