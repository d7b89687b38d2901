#include "zero/optimizer.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/adam.h"
#include "kernels/elementwise.h"
#include "runtime/swap.h"
#include "zero/residency.h"
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
void update(const Storage& storage, int64_t begin, const Tensor& gradients, const States& states,
            const OptimizerStep& step, const AdamOptions& adam, Stream& stream) {
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

/// What of a storage's states is in a file goes through two sets of buffers: while one is computed
/// on, the drive fills the other with what comes next, and before that empties it of what was. A
/// skipped step moves the same bytes.
class Streaming {
 public:
  Streaming(Storage& storage, int64_t longest)
      : states_{storage.masters, storage.moment1, storage.moment2,
                storage.low_precision(storage.state_begin, storage.state_numel)} {
    const bool streams = std::any_of(states_.begin(), states_.end(), in_file);
    // AdamW cuts its ranges at multiples of the alignment.
    step_ =
        streams ? std::min(FlatUnit::aligned(longest), storage.state_numel) : storage.state_numel;
    const PurposeScope purpose(storage.sums.device(), Purpose::optimizer);
    const NameScope name(storage.sums.device(), storage.name + " states");
    for (States& buffers : buffers_)
      for (size_t i = 0; i < states_.size(); ++i)
        if (in_file(states_[i]))
          buffers[i] = Tensor::empty({step_}, states_[i].dtype(), states_[i].device(), Space::host);
  }

  /// Calls f(states in memory) for elements [begin, begin + count) of the states.
  template <class F>
  void run(int64_t numel, const F& f) {
    load(0, numel);
    for (int64_t begin = 0; begin < numel; begin += step_) {
      const size_t set = set_of(begin);
      load(begin + step_, numel);
      wait_for_swap(states_[masters].device(), ready_[set]);
      f(begin, std::min(step_, numel - begin), in_memory(begin, numel));
      save(begin, numel);
    }
    wait_for_swap(states_[masters].device(), last_);
  }

 private:
  size_t set_of(int64_t begin) const { return static_cast<size_t>(begin / step_ % 2); }

  States in_memory(int64_t begin, int64_t numel) const {
    const int64_t count = std::min(step_, numel - begin);
    States states;
    for (size_t i = 0; i < states_.size(); ++i)
      if (states_[i])
        states[i] = in_file(states_[i]) ? buffers_[set_of(begin)][i].flat(0, count)
                                        : states_[i].flat(begin, count);
    return states;
  }
  template <class F>
  void for_each_in_file(int64_t begin, int64_t numel, const F& f) {
    const States memory = in_memory(begin, numel);
    for (size_t i = 0; i < states_.size(); ++i)
      if (in_file(states_[i])) f(i, states_[i].flat(begin, memory[i].numel()), memory[i]);
  }
  void load(int64_t begin, int64_t numel) {
    if (begin >= numel) return;
    for_each_in_file(begin, numel, [&](size_t i, const Tensor& file, const Tensor& memory) {
      if (i != low_precision) ready_[set_of(begin)] = start_swap(file, memory);
    });
  }
  void save(int64_t begin, int64_t numel) {
    for_each_in_file(begin, numel, [&](size_t, const Tensor& file, const Tensor& memory) {
      last_ = ready_[set_of(begin)] = start_swap(memory, file);
    });
  }

  States states_;
  std::array<States, 2> buffers_;      // of those that are in a file
  std::array<SwapTicket, 2> ready_{};  // after it, the set is filled, or empty to be filled
  SwapTicket last_ = 0;
  int64_t step_;
};

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
    Streaming(storage, config.offload.sub_group_size)
        .run(storage.state_numel, [&](int64_t begin, int64_t count, const States& states) {
          if (!step.skipped)
            update(storage, storage.state_begin + begin, gradients.flat(begin, count), states, step,
                   config.adam, device.compute());
          else if (states[low_precision] && config.offload.parameter == Space::file)
            kernels::cast({.x = states[masters], .y = states[low_precision]}, device.compute());
        });
    if (config.stage > 0 && storage.stays_whole && comm.size() > 1)
      gather_in_buckets(storage.trainable.shard, storage.trainable.whole, storage.name + " values",
                        config.allgather_bucket_size, comm, tickets);
    if (!config.overlap_comm && !tickets.empty()) comm.wait(tickets.back());
  }
  if (!tickets.empty()) comm.wait(tickets.back());
}

}  // namespace zg::zero
