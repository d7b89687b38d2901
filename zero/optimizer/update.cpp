#include "zerograd/zero/optimizer/update.h"

#include <algorithm>
#include <map>
#include <utility>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/optimizer/whole_update.h"
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

void update(const Optimizer& optimizer, std::vector<OptimizerRange>& ranges,
            const OptimizerStep& step, const Device& device, Stream& stream) {
  if (ranges.empty()) return;
  if (optimizer.is_fused()) return optimizer.update(step, ranges, stream);
  const PurposeScope purpose(device, Purpose::optimizer);
  const NameScope name(device, optimizer.name());
  for (OptimizerRange& range : ranges) {
    const Tensor sum = std::exchange(range.gradient, range.scratch());
    kernels::axpby({.x = sum, .y = range.gradient, .a = step.gradient_scale, .b = 0.0}, stream);
  }
  optimizer.update(step, ranges, stream);
  for (const OptimizerRange& range : ranges)
    if (range.value) kernels::cast({.x = range.master, .y = range.value}, stream);
}

/// Updates the parameters of GatheredOptimizer.
void update_gathered(Storage& storage, const Tensor& all_sums, const OptimizerStep& step,
                     const Config& config, const Device& device, Communicator& comm,
                     StateReader* reader) {
  if (storage.trainable.flat.whole_end == 0 || !step.stream.empty()) return;
  if (reader) reader->wait_until_read(storage, storage.state_begin + whole_in(storage));
  for (const Optimizers::Entry& entry : storage.optimizers->all())
    if (entry.gathered)
      entry.gathered->update_gathered({storage, all_sums, step, config, device, comm});
}

/// Streams the states of all storages through buffers, in the order of the update, without those of
/// parameters that are updated whole. A skipped step moves the same bytes.
Streaming stream_states(std::span<const Storage> storages, const Config& config,
                        const Device& device, std::shared_ptr<StreamingBuffers> buffers) {
  std::vector<Streaming::Part> parts;
  for (const Storage& storage : storages) {
    if (storage.trainable.empty()) continue;
    const StateTensors states = states_of(storage);
    for (const Chunk& chunk : chunks_of(storage, config))
      parts.push_back(part_of(storage, states, chunk));
  }
  const PurposeScope purpose(device, Purpose::optimizer);
  const NameScope name(device, "states on their way");
  return Streaming(std::move(parts), device, std::move(buffers));
}

}  // namespace

GradientSums sum_gradients(std::span<const Storage> storages, const ParameterStore& store,
                           const Config& config, const Device& device, Communicator& comm) {
  const PurposeScope purpose(device, Purpose::workspace);
  const int64_t parameters = std::ssize(store.parameters());
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
      const int64_t step = step_of(end - piece.begin, !kernels_reach(storage.sums), config);
      for (int64_t begin = piece.begin; begin < end; begin += step) {
        parts.push_back({{.tensor = storage.sums.flat(begin, std::min(step, end - begin)),
                          .saves = false,
                          .unit = storage.name,
                          .state = "gradients"}});
        parameter_of.push_back(piece.parameter);
      }
    }
  // Chunks that pass through buffers are summed one by one, the others together.
  const auto moves_at = [](const Streaming::Part& part) { return part[0].moves(); };
  const bool moves = std::any_of(parts.begin(), parts.end(), moves_at);
  const auto is_far = [](const Streaming::Part& part) { return !kernels_reach(part[0].tensor); };
  const bool one_by_one = std::any_of(parts.begin(), parts.end(), is_far);
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
         .non_finite = sums.flat(limb_count + parameter->index, 1),
         .each = !parameter->slice.keeps_granules(SumOfSquares::granule)});
    if (one_by_one) sum_chunks();
    streaming->keep();
  }
  if (!one_by_one) sum_chunks();
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
    MeshSums all = sum_over_parts(part, *mesh, device);
    return {.limbs = std::move(all.limbs), .non_finite = std::move(all.non_finite)};
  }
  GradientSummary summary{.limbs = std::move(part.limbs)};
  if (part.index >= 0) summary.non_finite = part.name;
  return summary;
}

namespace {

bool is_watched(const Device& device) { return device.trace() && device.trace()->is_watched(); }

/// Whether something else than the device's compute stream works on the states in an update.
bool leaves_stream(const Storage& storage) {
  return is_updated_by_host(storage) || streams(storage) || in_file(storage.sums);
}

}  // namespace

bool device_decides(std::span<const Storage> storages, const Optimizers& optimizers,
                    const Device& device, const Mesh* mesh) {
  const auto waits = [](const Optimizers::Entry& entry) {
    return !entry.optimizer->is_fused() || entry.optimizer->needs_whole();
  };
  return device.traits().backend != Device::Type::cpu && !mesh &&
         std::none_of(optimizers.all().begin(), optimizers.all().end(), waits) &&
         std::none_of(storages.begin(), storages.end(), leaves_stream);
}

void update(std::span<Storage> storages, const Optimizers& optimizers, const OptimizerStep& step,
            const Config& config, const Device& device, Communicator& comm, StateReader* reader,
            std::shared_ptr<StreamingBuffers> buffers) {
  std::vector<Communicator::Ticket> tickets;
  for (Storage& storage : storages) storage.zero_unfolded(device.compute());
  for (Storage& storage : storages) storage.free_values();  // the next use rounds the new masters
  HostStream host(device);
  if (std::any_of(storages.begin(), storages.end(), leaves_stream))
    device.compute().synchronize();  // the host or another stream reads the gradient accumulators
  Streaming streaming = stream_states(storages, config, device, std::move(buffers));
  // By optimizer: the ranges of all storages that are updated by one call.
  std::map<size_t, std::vector<OptimizerRange>> together;
  for (Storage& storage : storages) {
    if (storage.trainable.empty()) continue;
    const bool by_host = is_updated_by_host(storage);
    Stream& stream = by_host ? static_cast<Stream&>(host) : device.compute();
    const StateTensors whole = states_of(storage);
    const Tensor all_sums = whole[sums_lane(storage)]
                                ? Tensor()
                                : gathered_sums(storage, config, device,
                                                by_host ? host_space(device) : Space::device, comm);
    const bool gathers =
        config.stage > 0 && storage.stays_whole && comm.size() > 1 && step.stream.empty();
    const bool waits =
        !streams(storage) && kernels_reach(storage.sums) && !all_sums && !gathers && !reader;
    update_gathered(storage, all_sums, step, config, device, comm, reader);
    for (const Chunk& chunk : chunks_of(storage, config)) {
      if (storage.updated) {
        streaming.skip();
        continue;
      }
      const std::vector<Tensor>& states = streaming.next();
      if (reader) reader->wait_until_read(storage, storage.state_begin + chunk.begin + chunk.numel);
      const Optimizer& optimizer = *optimizers.all()[chunk.optimizer].optimizer;
      const bool applies = step.stream.empty() || has_stream(optimizer, step.stream);
      // A skipped step takes the same memory.
      if (applies && !(step.skipped && optimizer.is_fused())) {
        const NameScope name(device, storage.name + " states");
        // So that a watch sees each storage by itself.
        const bool now = !waits || !optimizer.is_fused() || is_watched(device);
        std::vector<OptimizerRange> ranges;
        append(storage, chunk,
               all_sums ? all_sums.flat(chunk.begin, chunk.numel) : states[sums_lane(storage)],
               states, config.update, now ? ranges : together[chunk.optimizer]);
        HostStream idle = HostStream::idle(stream);
        update(optimizer, ranges, step, device, step.skipped ? idle : stream);
      }
      if ((step.skipped || !applies) && lane_of(storage, whole, values_lane(storage)).moves())
        kernels::cast({.x = states[masters_lane], .y = states[values_lane(storage)]}, stream);
      streaming.keep();
    }
    if (by_host) streaming.finish();  // the gather below reads the parameters on the device
    if (gathers)
      gather_in_buckets(storage.trainable.shard, storage.trainable.whole, storage.name + " values",
                        config.allgather_bucket_size, comm, tickets);
    if (!config.overlap_comm && !tickets.empty()) comm.wait(tickets.back());
  }
  for (auto& [index, ranges] : together)
    update(*optimizers.all()[index].optimizer, ranges, step, device, device.compute());
  if (!tickets.empty()) comm.wait_on_device(tickets.back());
  streaming.finish();
}

}  // namespace zg::zero
