#include "zerograd/zero/optimizer/optimizer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/device.h"
#include "zerograd/zero/optimizer/adafactor.h"
#include "zerograd/zero/optimizer/lanes.h"
#include "zerograd/zero/optimizer/muon.h"
#include "zerograd/zero/parallel/model_parts.h"
#include "zerograd/zero/states/residency.h"

namespace zg::zero {
namespace {

/// The whole gradient accumulators, gathered from all ranks.
Tensor gathered_sums(const Storage& storage, const Config& config, const Device& device,
                     Space space, Communicator& comm) {
  const PurposeScope purpose(device, Purpose::gradient);
  const NameScope name(device, storage.name + " gradients");
  const Tensor whole = Tensor::empty({storage.state_numel}, storage.sums.dtype(), device, space);
  std::vector<Communicator::Ticket> tickets;
  gather_in_buckets(in_memory(storage.sums), whole, storage.name + " gradients",
                    config.allgather_bucket_size, comm, tickets);
  comm.wait_on_device(tickets.back());
  return whole;
}

void update(std::vector<OptimizerTensor> tensors, const OptimizerStep& step, const Config& config,
            Stream& stream) {
  if (tensors.empty()) return;
  const UpdateOptions& options = config.update;
  const bool is_muon = options.rule == OptimizerRule::muon;  // these are not its matrices
  kernels::optimizer_update(
      {.tensors = std::move(tensors),
       .rule = is_muon ? OptimizerRule::adam : options.rule,
       .gradient_scale = step.gradient_scale,
       .scale = step.scale,
       .rate = is_muon ? step.rate * options.muon.adam_rate : step.rate,
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

/// Updates the parameters that the optimizer needs whole.
void update_whole_parameters(Storage& storage, const Tensor& all_sums, const OptimizerStep& step,
                             const Config& config, const Device& device, Communicator& comm,
                             StateReader* reader) {
  if (storage.trainable.flat.whole_end == 0) return;
  if (reader) reader->wait_until_read(storage, storage.state_begin + whole_in(storage));
  const bool is_muon = config.update.rule == OptimizerRule::muon;
  (is_muon ? update_matrices : update_factored)(storage, all_sums, step, config, device, comm);
}

/// Streams the states of all storages through buffers, in the order of the update, without those of
/// parameters that are updated whole. A skipped step moves the same bytes.
Streaming stream_states(std::span<const Storage> storages, const Config& config,
                        const Device& device) {
  std::vector<Streaming::Part> parts;
  for (const Storage& storage : storages) {
    if (storage.trainable.empty()) continue;
    const StateTensors states = states_of(storage);
    const int64_t step = step_of(storage, config);
    for (int64_t begin = whole_in(storage); begin < storage.state_numel; begin += step) {
      Streaming::Part& part = parts.emplace_back();
      for (size_t i = 0; i < states.size(); ++i) {
        part.push_back(lane_of(storage, states, i));
        part.back().tensor =
            part_of(storage, states, i, begin, std::min(step, storage.state_numel - begin));
      }
    }
  }
  const PurposeScope purpose(device, Purpose::optimizer);
  const NameScope name(device, "states on their way");
  return Streaming(std::move(parts), device);
}

}  // namespace

GradientSums sum_gradients(std::span<const Storage> storages, const ParameterStore& store,
                           const Config& config, const Device& device, Communicator& comm) {
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
  // Chunks that pass through buffers are summed one by one, the others together.
  const bool moves = std::any_of(parts.begin(), parts.end(),
                                 [](const Streaming::Part& part) { return part[0].moves(); });
  const auto streaming = std::make_shared<Streaming>(std::move(parts), device);
  SumOfSquares chunks;
  const auto sum_chunks = [&] {
    kernels::sum_of_squares(chunks, device.compute());
    chunks.parts.clear();
  };
  for (const Parameter* parameter : parameter_of) {
    chunks.parts.push_back(
        {.x = streaming->next()[0],
         .limbs = parameter->copy == Copy::replica ? uncounted : sums.flat(0, limb_count),
         .non_finite = sums.flat(limb_count + parameter->index, 1)});
    if (moves) sum_chunks();
    streaming->keep();
  }
  if (!moves) sum_chunks();
  if (comm.size() > 1) comm.wait_on_device(comm.all_reduce(sums, "gradient norm"));
  return {.all = sums, .buffers = moves ? streaming : nullptr};
}

GradientSummary summarise(const GradientSums& sums, const ParameterStore& store,
                          const Device& device, const Mesh* mesh) {
  const std::vector<int64_t> values = sums.all.to_host<int64_t>();
  const auto counts = values.begin() + SumOfSquares::limb_count;
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

namespace {

/// Whether something else than the device's compute stream works on the states in an update.
bool leaves_stream(const Storage& storage) {
  return is_updated_by_host(storage) || streams(storage) || in_file(storage.sums);
}

}  // namespace

bool device_decides(std::span<const Storage> storages, const Config& config, const Device& device,
                    const Mesh* mesh) {
  return device.traits().backend == Device::Type::cuda && !mesh &&
         config.update.rule != OptimizerRule::muon &&
         config.update.rule != OptimizerRule::adafactor &&
         std::none_of(storages.begin(), storages.end(), leaves_stream);
}

void update(std::span<Storage> storages, const OptimizerStep& step, const Config& config,
            const Device& device, Communicator& comm, StateReader* reader) {
  std::vector<Communicator::Ticket> tickets;
  for (Storage& storage : storages) storage.zero_unfolded(device.compute());
  HostStream host(device);
  if (std::any_of(storages.begin(), storages.end(), leaves_stream))
    device.compute().synchronize();  // the host or another stream reads the gradient accumulators
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
    const bool waits = !streams(storage) && !all_sums && !gathers && !reader;
    update_whole_parameters(storage, all_sums, step, config, device, comm, reader);
    const int64_t chunk_numel = step_of(storage, config);
    for (int64_t begin = whole_in(storage); begin < storage.state_numel; begin += chunk_numel) {
      const int64_t count = std::min(chunk_numel, storage.state_numel - begin);
      const std::vector<Tensor>& states = streaming.next();
      if (reader) reader->wait_until_read(storage, storage.state_begin + begin + count);
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
  if (!tickets.empty()) comm.wait_on_device(tickets.back());
  streaming.finish();
}

}  // namespace zg::zero
