#include "zerograd/zero/optimizer/optimizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/device.h"
#include "zerograd/zero/checkpoint/snapshot.h"
#include "zerograd/zero/parallel/model_parts.h"
#include "zerograd/zero/states/residency.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::zero {
namespace {

/// Indices of the tensors that the optimizer reads and writes. At stage 0 `sums` is absent, and
/// gathered_sums() is used.
enum { masters, moment1, moment2, low_precision, sums };
using StateTensors = std::array<Tensor, 5>;
constexpr std::string_view state_names[] = {"masters", "moment1", "moment2", "values", "gradients"};

/// A stream that runs CPU kernels at once, on the caller's thread, on host memory of any device.
/// The caller must have waited for the device's own work on that memory.
class HostStream final : public Stream {
 public:
  explicit HostStream(const Device& device) : device_(device), traits_(device.traits()) {
    traits_.backend = Device::Type::cpu;
  }
  Device device() const override { return device_; }
  const Device::Traits& traits() const override { return traits_; }
  Device::Type type() const override {
    return device_.type() == Device::Type::meta ? Device::Type::meta : Device::Type::cpu;
  }
  Trace* trace() const override { return device_.trace(); }
  const char* name() const override { return "host"; }
  void synchronize() override {}
  void copy(void* to, const void* from, size_t bytes) override { std::memmove(to, from, bytes); }
  void fill_zero(void* to, size_t bytes) override { std::memset(to, 0, bytes); }

 private:
  const Device device_;
  Device::Traits traits_;
};

/// The whole gradient accumulators, gathered from all ranks.
Tensor gathered_sums(const Storage& storage, const Config& config, const Device& device,
                     Space space, Communicator& comm) {
  const PurposeScope purpose(device, Purpose::gradient);
  const NameScope name(device, storage.name + " gradients");
  const Tensor whole = Tensor::empty({storage.state_numel}, storage.sums.dtype(), device, space);
  std::vector<Communicator::Ticket> tickets;
  gather_in_buckets(in_memory(storage.sums), whole, storage.name + " gradients",
                    config.allgather_bucket_size, comm, tickets);
  comm.wait(tickets.back());
  return whole;
}

/// Appends the tensors that are updated in elements [begin, begin + gradients.numel()) of the
/// storage's flat array: one for each range of equal weight decay. With stochastic rounding one for
/// each parameter, because the random bits depend on its name.
void append(const Storage& storage, int64_t begin, const Tensor& gradients,
            const std::vector<Tensor>& states, const UpdateOptions& options,
            std::vector<OptimizerTensor>& to) {
  const int64_t end = begin + gradients.numel();
  const auto append_part = [&](int64_t first, int64_t numel, bool decay) {
    const auto part = [&](const Tensor& tensor) {
      return tensor ? tensor.flat(first, numel) : Tensor();
    };
    to.push_back({.parameter = part(states[masters]),
                  .gradient = part(gradients),
                  .moment1 = part(states[moment1]),
                  .moment2 = part(states[moment2]),
                  .low_precision = part(states[low_precision]),
                  .weight_decay = decay ? options.weight_decay : 0.0f});
  };
  const FlatUnit& flat = storage.trainable.flat;
  if (!options.stochastic_rounding) {
    for (const FlatUnit::Range& range : flat.ranges(begin, end))
      append_part(range.begin, range.numel(), range.decay);
    return;
  }
  // The random bits depend on the element's index in the whole parameter.
  for (const FlatUnit::Piece& piece : flat.within(begin, end)) {
    const Slice& slice = piece.parameter->slice;
    for (int64_t done = 0; done < piece.numel();) {
      const int64_t element = piece.offset + done, left = piece.numel() - done;
      const int64_t run = slice.is_whole() ? left : std::min(left, slice.run_left(element));
      append_part(piece.begin + done, run, piece.parameter->decay);
      to.back().name = hash_name(piece.parameter->name.c_str());
      to.back().first = slice.whole_index(element);
      done += run;
    }
  }
}

void update(std::vector<OptimizerTensor> tensors, const OptimizerStep& step, const Config& config,
            Stream& stream) {
  if (tensors.empty()) return;
  const UpdateOptions& options = config.update;
  kernels::optimizer_update(
      {.tensors = std::move(tensors),
       .rule = options.rule,
       .gradient_scale = step.gradient_scale,
       .rate = step.rate,
       .beta1 = step.betas.beta1,
       .beta2 = step.betas.beta2,
       .epsilon = options.epsilon,
       .dampening = options.dampening,
       .nesterov = options.nesterov,
       .step = step.step,
       .decoupled = options.decoupled,
       .rounding_seed = options.stochastic_rounding ? std::optional(config.seed) : std::nullopt},
      stream);
}

StateTensors states_of(const Storage& storage) {
  const bool own = storage.sums.numel() == storage.state_numel;
  return {storage.masters, storage.moment1, storage.moment2,
          storage.low_precision(storage.state_begin, storage.state_numel),
          own ? storage.sums : Tensor()};
}

/// ZeRO-Offload: the CPU updates states that are stored on the host of an accelerator. Gradient
/// accumulators are copied from the device and parameters to it: 6 bytes for each element in bf16.
/// An update on the device would transfer all states in both directions.
bool is_updated_by_host(const Storage& storage) {
  if (!storage.moment1 && storage.values_are_masters) return false;  // no states
  const Tensor& state = storage.moment1 ? storage.moment1 : storage.masters;
  return state && state.buffer()->space() != Space::device &&
         state.device().traits().backend != Device::Type::cpu;
}

Streaming::Lane lane_of(const Storage& storage, const StateTensors& states, size_t state) {
  return {.tensor = states[state],
          .loads = state != low_precision,
          .saves = state != sums,
          .to_host = is_updated_by_host(storage),
          .unit = storage.name,
          .state = state_names[state]};
}

/// Number of elements of a storage that are updated at a time. Chunks end on multiples of the
/// alignment.
int64_t step_of(int64_t numel, bool streams, const Config& config) {
  return streams ? std::min(FlatUnit::aligned(config.offload.sub_group_size), numel) : numel;
}
bool streams(const Storage& storage) {
  const StateTensors states = states_of(storage);
  bool moves = false;
  for (size_t i = 0; i < states.size(); ++i) moves |= lane_of(storage, states, i).moves();
  return moves;
}
int64_t step_of(const Storage& storage, const Config& config) {
  return step_of(storage.state_numel, streams(storage), config);
}

/// Streams the states of all storages through buffers, in the order of the update. A skipped step
/// moves the same bytes.
Streaming stream_states(std::span<const Storage> storages, const Config& config,
                        const Device& device) {
  std::vector<Streaming::Part> parts;
  for (const Storage& storage : storages) {
    if (storage.trainable.empty()) continue;
    const StateTensors states = states_of(storage);
    const int64_t step = step_of(storage, config);
    for (int64_t begin = 0; begin < storage.state_numel; begin += step) {
      Streaming::Part& part = parts.emplace_back();
      for (size_t i = 0; i < states.size(); ++i) {
        part.push_back(lane_of(storage, states, i));
        if (Tensor& tensor = part.back().tensor)
          tensor = tensor.flat(begin, std::min(step, storage.state_numel - begin));
      }
    }
  }
  const PurposeScope purpose(device, Purpose::optimizer);
  const NameScope name(device, "states on their way");
  return Streaming(std::move(parts), device);
}

}  // namespace

GradientSummary summarise(std::span<const Storage> storages, const ParameterStore& store,
                          const Config& config, const Device& device, Communicator& comm,
                          const Mesh* mesh) {
  const PurposeScope purpose(device, Purpose::workspace);
  const int64_t parameters = static_cast<int64_t>(store.parameters().size());
  constexpr int64_t limb_count = SumOfSquares::limb_count;
  const Tensor sums = Tensor::zeros({limb_count + parameters}, DType::i64, device);
  // Replicas are excluded from the norm, because another tensor rank counts them. An overflow is
  // reported on every rank that sees it.
  const bool has_replicas =
      std::any_of(store.parameters().begin(), store.parameters().end(),
                  [](const auto& parameter) { return parameter->copy == Copy::replica; });
  const Tensor uncounted =
      has_replicas ? Tensor::zeros({limb_count}, DType::i64, device) : Tensor();
  std::vector<Streaming::Part> parts;
  std::vector<const Parameter*> parameter_of;  // by chunk in `parts`
  for (const Storage& storage : storages)
    for (size_t i = 0; i < storage.pieces.size(); ++i) {
      if (!storage.folded[i]) continue;
      const FlatUnit::Piece& piece = storage.pieces[i];
      // Includes the padding after the piece, which is zero, so the range is a multiple of the
      // alignment.
      const int64_t end = piece.begin + FlatUnit::aligned(piece.numel());
      const int64_t step = step_of(end - piece.begin, in_file(storage.sums), config);
      for (int64_t begin = piece.begin; begin < end; begin += step) {
        parts.push_back({{.tensor = storage.sums.flat(begin, std::min(step, end - begin)),
                          .saves = false,
                          .unit = storage.name,
                          .state = "gradients"}});
        parameter_of.push_back(piece.parameter);
      }
    }
  Streaming streaming(std::move(parts), device);
  for (const Parameter* parameter : parameter_of) {
    kernels::sum_of_squares(
        {.x = streaming.next()[0],
         .limbs = parameter->copy == Copy::replica ? uncounted : sums.flat(0, limb_count),
         .non_finite = sums.flat(limb_count + parameter->index, 1)},
        device.compute());
    streaming.keep();
  }
  if (comm.size() > 1) comm.wait(comm.all_reduce(sums, "gradient norm"));
  const std::vector<int64_t> values = sums.to_host<int64_t>();
  const auto counts = values.begin() + limb_count;
  const auto bad = std::find_if(counts, values.end(), [](int64_t n) { return n > 0; });
  PartSums part{.limbs = {values.begin(), counts}};
  if (bad != values.end()) {
    part.index = static_cast<int>(bad - counts);
    part.name = store.parameters()[static_cast<size_t>(part.index)]->name;
  }
  if (mesh) {
    const MeshSums all = sum_over_parts(part, *mesh, device);
    return {.sum_of_squares = value_of_limbs(all.limbs.data()), .non_finite = all.non_finite};
  }
  GradientSummary summary{.sum_of_squares = value_of_limbs(part.limbs.data())};
  if (part.index >= 0) summary.non_finite = part.name;
  return summary;
}

float gradient_scale(double norm, int64_t micro_batches, float clip_norm, double loss_scale) {
  const double clip = clip_norm > 0.0f ? std::min(1.0, clip_norm / (norm + 1e-6)) : 1.0;
  return static_cast<float>(clip / (static_cast<double>(micro_batches) * loss_scale));
}

void update(std::span<Storage> storages, const OptimizerStep& step, const Config& config,
            const Device& device, Communicator& comm, Snapshot* snapshot) {
  std::vector<Communicator::Ticket> tickets;
  for (Storage& storage : storages) storage.zero_unfolded(device.compute());
  HostStream host(device);
  device.compute().synchronize();  // the CPU reads the gradient accumulators
  Streaming streaming = stream_states(storages, config, device);
  std::vector<OptimizerTensor>
      together;  // the tensors of all storages that are updated by one call
  for (Storage& storage : storages) {
    if (storage.trainable.empty()) continue;
    const bool by_host = is_updated_by_host(storage);
    Stream& stream = by_host ? static_cast<Stream&>(host) : device.compute();
    const StateTensors whole = states_of(storage);
    const Tensor all_sums = whole[sums]
                                ? Tensor()
                                : gathered_sums(storage, config, device,
                                                by_host ? host_space(device) : Space::device, comm);
    const bool gathers = config.stage > 0 && storage.stays_whole && comm.size() > 1;
    const bool waits = !streams(storage) && !all_sums && !gathers && !snapshot;
    const int64_t chunk_numel = step_of(storage, config);
    for (int64_t begin = 0; begin < storage.state_numel; begin += chunk_numel) {
      const int64_t count = std::min(chunk_numel, storage.state_numel - begin);
      const std::vector<Tensor>& states = streaming.next();
      if (snapshot) snapshot->wait_until_read(storage, storage.state_begin + begin + count);
      if (!step.skipped) {
        std::vector<OptimizerTensor> now;
        append(storage, storage.state_begin + begin,
               all_sums ? all_sums.flat(begin, count) : states[sums], states, config.update,
               waits ? together : now);
        update(std::move(now), step, config, stream);
      } else if (lane_of(storage, whole, low_precision).moves())
        kernels::cast({.x = states[masters], .y = states[low_precision]}, stream);
      streaming.keep();
    }
    if (by_host) streaming.finish();  // the gather below reads the parameters on the device
    if (gathers)
      gather_in_buckets(storage.trainable.shard, storage.trainable.whole, storage.name + " values",
                        config.allgather_bucket_size, comm, tickets);
    if (!config.overlap_comm && !tickets.empty()) comm.wait(tickets.back());
  }
  update(std::move(together), step, config, device.compute());
  if (!tickets.empty()) comm.wait(tickets.back());
  streaming.finish();
}

}  // namespace zg::zero
