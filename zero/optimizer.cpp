#include "zero/optimizer.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/adam.h"
#include "kernels/elementwise.h"
#include "zero/residency.h"
#include "zero/snapshot.h"
#include "zero/streaming.h"
#include "zero/transfer.h"

namespace zg::zero {
namespace {

// A meta device answers zeros: finite gradients of norm 0.
std::vector<int64_t> read_back(const Tensor& counts) {
  if (counts.device().type() != Device::Type::meta) return counts.to_host<int64_t>();
  return std::vector<int64_t>(static_cast<size_t>(counts.numel()));
}

/// What AdamW writes.
enum { masters, moment1, moment2, low_precision };
using States = std::array<Tensor, 4>;

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

/// AdamW over elements [begin, begin + masters.numel()) of the storage's flat array.
void update(const Storage& storage, int64_t begin, const Tensor& gradients,
            const std::vector<Tensor>& states, const OptimizerStep& step, const AdamOptions& adam,
            Stream& stream) {
  const int64_t end = begin + gradients.numel();
  for (const FlatUnit::Range& range : storage.trainable.flat.ranges(begin, end)) {
    const auto part = [&](const Tensor& tensor) {
      return tensor ? tensor.flat(range.begin, range.numel()) : Tensor();
    };
    kernels::adam({.parameter = part(states[masters]),
                   .gradient = part(gradients),
                   .moment1 = part(states[moment1]),
                   .moment2 = part(states[moment2]),
                   .low_precision = part(states[low_precision]),
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

States states_of(const Storage& storage) {
  return {storage.masters, storage.moment1, storage.moment2,
          storage.low_precision(storage.state_begin, storage.state_numel)};
}

/// How many elements of a storage AdamW takes at a time: it cuts its ranges at multiples of the
/// alignment.
int64_t step_of(const Storage& storage, const Config& config) {
  const States states = states_of(storage);
  return std::any_of(states.begin(), states.end(), in_file)
             ? std::min(FlatUnit::aligned(config.offload.sub_group_size), storage.state_numel)
             : storage.state_numel;
}

/// The states of all storages, in the order of the update. A skipped step moves the same bytes.
Streaming stream_states(std::span<const Storage> storages, const Config& config,
                        const Device& device) {
  std::vector<Streaming::Part> parts;
  for (const Storage& storage : storages) {
    if (storage.trainable.empty()) continue;
    const States states = states_of(storage);
    const int64_t step = step_of(storage, config);
    for (int64_t begin = 0; begin < storage.state_numel; begin += step) {
      Streaming::Part& part = parts.emplace_back();
      for (size_t i = 0; i < states.size(); ++i)
        part.push_back(
            {.tensor = states[i]
                           ? states[i].flat(begin, std::min(step, storage.state_numel - begin))
                           : Tensor(),
             .loads = i != low_precision});
    }
  }
  const PurposeScope purpose(device, Purpose::optimizer);
  const NameScope name(device, "states on their way");
  return Streaming(std::move(parts), device);
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
            const Device& device, Communicator& comm, Snapshot* snapshot) {
  std::vector<Communicator::Ticket> tickets;
  Streaming streaming = stream_states(storages, config, device);
  for (Storage& storage : storages) {
    if (storage.trainable.empty()) continue;
    const Tensor gradients = gradients_of(storage, config, device, comm);
    const int64_t longest = step_of(storage, config);
    for (int64_t begin = 0; begin < storage.state_numel; begin += longest) {
      const int64_t count = std::min(longest, storage.state_numel - begin);
      const std::vector<Tensor>& states = streaming.next();
      if (snapshot) snapshot->wait_until_read(storage, storage.state_begin + begin + count);
      if (!step.skipped)
        update(storage, storage.state_begin + begin, gradients.flat(begin, count), states, step,
               config.adam, device.compute());
      else if (states[low_precision] && config.offload.parameter == Space::file)
        kernels::cast({.x = states[masters], .y = states[low_precision]}, device.compute());
      streaming.keep();
    }
    if (config.stage > 0 && storage.stays_whole && comm.size() > 1)
      gather_in_buckets(storage.trainable.shard, storage.trainable.whole, storage.name + " values",
                        config.allgather_bucket_size, comm, tickets);
    if (!config.overlap_comm && !tickets.empty()) comm.wait(tickets.back());
  }
  if (!tickets.empty()) comm.wait(tickets.back());
  streaming.finish();
}

}  // namespace zg::zero
