#include "zerograd/zero/states/placements.h"

#include "zerograd/zero/states/partition.h"

namespace zg::zero {

Placements::Placements(const OffloadOptions& offload, const ParameterStore& store, int world)
    : offload_(offload), world_(world), host_left_(offload.parameters_on_host) {
  int64_t trainable = 0;
  for (const auto& parameter : store.parameters())
    if (is_updated(*parameter)) trainable += parameter->shape.numel();
  states_left_ = offload.optimizer_ratio * static_cast<double>(trainable);
}

Placements::Placement Placements::next(std::span<const Parameter* const> parameters,
                                       bool stays_whole) {
  Placement place{.parameter = offload_.parameter, .optimizer = offload_.optimizer};
  int64_t all = 0, trainable = 0;
  for (const Parameter* parameter : parameters) {
    all += parameter->shape.numel();
    if (is_updated(*parameter)) trainable += parameter->shape.numel();
  }
  if (states_left_ <= 0.0) place.optimizer = Space::device;
  states_left_ -= static_cast<double>(trainable);
  if (const int64_t shard = (all + world_ - 1) / world_;
      place.parameter == Space::file && !stays_whole && shard <= host_left_) {
    place.parameter = Space::host;
    host_left_ -= shard;
  }
  return place;
}

}  // namespace zg::zero
