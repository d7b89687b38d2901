#pragma once

#include <cstdint>

#include "zerograd/runtime/api.h"
#include "zerograd/zero/config.h"

namespace zg::zero {

/// Model states that one rank holds between steps, exact: the first three count elements of
/// parameters only, which over all ranks of a sharded kind add up to the model's; `padding` is what
/// alignment, equal shards and the arena's granule add to them.
struct RestingBytes {
  int64_t parameter = 0, gradient = 0, optimizer = 0, padding = 0;
  int64_t total() const { return parameter + gradient + optimizer + padding; }
  bool operator==(const RestingBytes&) const = default;
};

/// Bytes per rank and elements sent per step, relative to plain data parallelism.
struct ModelStates {
  double parameter = 0.0, gradient = 0.0, optimizer = 0.0;
  double volume = 1.0;
  double total() const { return parameter + gradient + optimizer; }
};

/// ZeRO, Rajbhandari et al. 2020, arXiv:1910.02054, figure 1 and section 7: 2 bytes of value and 2
/// of gradient per parameter, K of optimizer state.
ZG_API ModelStates paper_states(double parameters, int ranks, int stage, double K = 12.0);

/// Ours: values in config.compute; sums in grad_accum, sharded at every stage; masters unless they
/// are the values, and two moments, in config.optimizer. Volume: one micro-batch a step.
ZG_API ModelStates our_states(double parameters, int ranks, const Config& config);

}  // namespace zg::zero
