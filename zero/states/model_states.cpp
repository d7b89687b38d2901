#include "zerograd/zero/states/model_states.h"

#include "zerograd/runtime/dtype.h"

namespace zg::zero {
namespace {

// A step reduces every gradient once and gathers every parameter once; stage 3 gathers it for
// forward and again for backward.
double volume_of(int stage) { return stage == 3 ? 1.5 : 1.0; }

double bytes_per_rank(double bytes, bool partitioned, int ranks) {
  return partitioned ? bytes / static_cast<double>(ranks) : bytes;
}

}  // namespace

ModelStates paper_states(double parameters, int ranks, int stage, double K) {
  return {.parameter = bytes_per_rank(2.0 * parameters, stage >= 3, ranks),
          .gradient = bytes_per_rank(2.0 * parameters, stage >= 2, ranks),
          .optimizer = bytes_per_rank(K * parameters, stage >= 1, ranks),
          .volume = volume_of(stage)};
}

ModelStates our_states(double parameters, int ranks, const Config& config, bool rounds_at_use) {
  const auto bytes = [&](DType dtype) { return parameters * static_cast<double>(size_of(dtype)); };
  const double states =
      moments_of(config.update) + (config.optimizer == config.compute ? 0.0 : 1.0);
  ModelStates ours = {
      .parameter =
          rounds_at_use ? 0.0 : bytes_per_rank(bytes(config.compute), config.stage >= 3, ranks),
      .gradient = bytes_per_rank(bytes(config.grad_accum), true, ranks),
      .optimizer = bytes_per_rank(states * bytes(config.optimizer), config.stage >= 1, ranks),
      .volume = volume_of(config.stage)};
  if (config.reduce_at_boundary) ours.gradient += bytes(DType::f32);
  return ours;
}

}  // namespace zg::zero
