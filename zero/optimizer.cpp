#include "zero/optimizer.h"

#include <algorithm>
#include <vector>

#include "kernels/adam.h"
#include "zero/residency.h"

namespace zg::zero {
namespace {

// A meta device answers zeros: finite gradients of norm 0.
std::vector<int64_t> read_back(const Tensor& counts) {
  if (counts.device().type() != Device::Type::meta) return counts.to_host<int64_t>();
  return std::vector<int64_t>(static_cast<size_t>(counts.numel()));
}

/// The sums that AdamW reads, from element storage.state_begin on: this rank's own, or at stage 0
/// everybody's.
Tensor gradients_of(Storage& storage, const Config& config, const Device& device,
                    Communicator& comm) {
  storage.zero_unfolded(device.compute());
  if (config.stage > 0 || comm.size() == 1) return storage.sums;
  const PurposeScope purpose(device, Purpose::gradient);
  const NameScope name(device, storage.name + " gradients");
  const Tensor whole = Tensor::empty({storage.state_numel}, storage.sums.dtype(), device);
  std::vector<Communicator::Ticket> tickets;
  gather_in_buckets(storage.sums, whole, storage.name + " gradients", config.allgather_bucket_size,
                    comm, tickets);
  comm.wait(tickets.back());
  return whole;
}

void update(Storage& storage, const Tensor& gradients, const OptimizerStep& step,
            const AdamOptions& adam, Stream& stream) {
  const int64_t begin = storage.state_begin, end = begin + storage.state_numel;
  for (const FlatUnit::Range& range : storage.trainable.flat.ranges(begin, end)) {
    const auto part = [&](const Tensor& tensor) { return tensor.flat(range.begin, range.numel()); };
    kernels::adam({.parameter = part(storage.masters),
                   .gradient = part(gradients),
                   .moment1 = part(storage.moment1),
                   .moment2 = part(storage.moment2),
                   .low_precision = storage.low_precision(begin + range.begin, range.numel()),
                   .gradient_scale = step.gradient_scale,
                   .rate = step.rate,
                   .beta1 = step.betas.beta1,
                   .beta2 = step.betas.beta2,
                   .epsilon = adam.epsilon,
                   .weight_decay = range.decay ? adam.weight_decay : 0.0f,
                   .step = step.step,
                   .decoupled = adam.decoupled},
                  stream);
  }
}

}  // namespace

GradientSummary summarise(std::span<const Storage> storages, const ParameterStore& store,
                          const Device& device, Communicator& comm) {
  const PurposeScope purpose(device, Purpose::workspace);
  const int64_t parameters = static_cast<int64_t>(store.parameters().size());
  constexpr int64_t limb_count = SumOfSquares::limb_count;
  const Tensor sums = Tensor::zeros({limb_count + parameters}, DType::i64, device);
  for (const Storage& storage : storages)
    for (size_t i = 0; i < storage.pieces.size(); ++i) {
      if (!storage.folded[i]) continue;
      const FlatUnit::Piece& piece = storage.pieces[i];
      // With the padding behind it, which is zero: whole granules.
      const int64_t numel = FlatUnit::aligned(piece.numel());
      kernels::sum_of_squares({.x = storage.sums.flat(piece.begin, numel),
                               .limbs = sums.flat(0, limb_count),
                               .non_finite = sums.flat(limb_count + piece.parameter->index, 1)},
                              device.compute());
    }
  if (comm.size() > 1) comm.wait(comm.all_reduce(sums, "gradient norm"));
  const std::vector<int64_t> values = read_back(sums);
  GradientSummary summary{.sum_of_squares = value_of_limbs(values.data())};
  const auto counts = values.begin() + limb_count;
  const auto bad = std::find_if(counts, values.end(), [](int64_t n) { return n > 0; });
  if (bad != values.end())
    summary.non_finite = store.parameters()[static_cast<size_t>(bad - counts)].get();
  return summary;
}

float gradient_scale(double norm, int64_t micro_batches, float clip_norm, double loss_scale) {
  const double clip = clip_norm > 0.0f ? std::min(1.0, clip_norm / (norm + 1e-6)) : 1.0;
  return static_cast<float>(clip / (static_cast<double>(micro_batches) * loss_scale));
}

void update(std::span<Storage> storages, const OptimizerStep& step, const Config& config,
            const Device& device, Communicator& comm) {
  std::vector<Communicator::Ticket> tickets;
  for (Storage& storage : storages) {
    if (storage.trainable.empty()) continue;
    const Tensor gradients = gradients_of(storage, config, device, comm);
    if (!step.skipped) update(storage, gradients, step, config.adam, device.compute());
    if (config.stage > 0 && storage.stays_whole && comm.size() > 1)
      gather_in_buckets(storage.trainable.shard, storage.trainable.whole, storage.name + " values",
                        config.allgather_bucket_size, comm, tickets);
    if (!config.overlap_comm && !tickets.empty()) comm.wait(tickets.back());
  }
  if (!tickets.empty()) comm.wait(tickets.back());
}

}  // namespace zg::zero
