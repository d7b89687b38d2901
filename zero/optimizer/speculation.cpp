#include "zerograd/zero/optimizer/speculation.h"

#include <algorithm>
#include <utility>

#include "zerograd/runtime/device.h"

namespace zg::zero {
namespace {

bool may_have_shadow(const Storage& storage, const Config& config, int ranks) {
  const auto takes_ranges = [&](const FlatUnit::Section& section) {
    const Optimizer& optimizer = *storage.optimizers->all()[section.optimizer].optimizer;
    return optimizer.is_fused() && !optimizer.needs_whole();
  };
  return !storage.trainable.empty() && is_offloaded(storage) && !in_file(storage.sums) &&
         (config.stage > 0 || ranks == 1) &&
         std::ranges::all_of(storage.trainable.flat.sections, takes_ranges);
}

Tensor zeros_like(const Tensor& tensor) {
  const Tensor zeros =
      Tensor::empty(tensor.shape(), tensor.dtype(), tensor.device(), tensor.buffer()->space());
  fill_zero(zeros, tensor.device().compute());
  return zeros;
}

}  // namespace

Speculation::Speculation(std::vector<Storage>& storages, size_t units, const Config& config,
                         const Device& device, int ranks)
    : config_(config), device_(device), buffers_(std::make_shared<StreamingBuffers>(device)) {
  int64_t left = config.offload.speculation;
  const PurposeScope purpose(device, Purpose::optimizer);
  for (size_t i = 0; i < storages.size(); ++i) {
    // Backward finishes the last unit first.
    Storage& storage = storages[i < units ? units - 1 - i : i];
    if (!may_have_shadow(storage, config, ranks)) continue;
    StateTensors tensors = states_of(storage);
    tensors.pop_back();  // gradient accumulators
    int64_t bytes = 0;
    for (const Tensor& tensor : tensors)
      if (tensor) bytes += arena_bytes(tensor.bytes(), tensor.buffer()->space());
    if (bytes > left) continue;
    left -= bytes;
    const NameScope name(device, storage.name + " shadow");
    for (Tensor& tensor : tensors)
      if (tensor) tensor = zeros_like(tensor);
    for (const Chunk& chunk : chunks_of(storage, config)) {
      work_.push_back({shadows_.size(), chunk});
      for (const Streaming::Lane& lane : part_of(storage, states_of(storage), chunk)) {
        if (!in_file(lane.tensor)) continue;
        if (lane.loads) redo_io_.read += block_bytes(lane.tensor);
        if (lane.saves) redo_io_.written += block_bytes(lane.tensor);
      }
    }
    shadows_.push_back({&storage, std::move(tensors)});
  }
}

void Speculation::expect(int64_t micro_batches, const OptimizerStep& step) {
  cancel();
  expected_ = {micro_batches, step};
}

void Speculation::begin(int64_t done) {
  if (streaming_ || !expected_ || done + 1 != expected_->micro_batches || work_.empty()) return;
  next_ = 0;
  for (const Shadow& shadow : shadows_) shadow.storage->summed = false;
  std::vector<Streaming::Part> parts;
  for (const auto& [index, chunk] : work_) {
    const auto& [storage, tensors] = shadows_[index];
    Streaming::Part& part = parts.emplace_back(part_of(*storage, states_of(*storage), chunk));
    for (size_t lane = 0; lane < part.size(); ++lane) {
      if (lane < tensors.size())
        part[lane].to = part_of(*storage, tensors, lane, chunk.begin, chunk.numel);
      part[lane].loads = part[lane].loads && pause_ == 0;
    }
  }
  const PurposeScope purpose(device_, Purpose::optimizer);
  const NameScope name(device_, "states on their way");
  streaming_ = std::make_unique<Streaming>(std::move(parts), device_, buffers_);
}

void Speculation::advance(StateReader* reader) {
  if (!streaming_ || pause_ > 0 || next_ == work_.size()) return;
  if (shadows_[work_[next_].shadow].storage->summed && streaming_->is_read()) update_next(reader);
}

void Speculation::complete(StateReader* reader) {
  if (!streaming_ || pause_ > 0) return;
  for (const Shadow& shadow : shadows_) shadow.storage->zero_unfolded(device_.compute());
  while (next_ < work_.size()) update_next(reader);
}

void Speculation::update_next(StateReader* reader) {
  const auto& [index, chunk] = work_[next_++];
  const auto& [storage, tensors] = shadows_[index];
  Stream& stream = device_.compute();
  std::vector<Tensor> states = streaming_->next();
  for (size_t lane = 0; lane < tensors.size(); ++lane) {
    const Tensor to = part_of(*storage, tensors, lane, chunk.begin, chunk.numel);
    if (to && reader) reader->wait_until_read(to);
    if (!to || in_file(to)) continue;
    if (lane != values_lane(*storage)) copy(states[lane], to, stream);
    states[lane] = to;
  }
  std::vector<OptimizerRange> ranges;
  const Tensor sums =
      part_of(*storage, states_of(*storage), sums_lane(*storage), chunk.begin, chunk.numel);
  append(*storage, chunk, sums, states, config_.update, ranges);
  if (!ranges.empty())
    storage->optimizers->all()[chunk.optimizer].optimizer->update(expected_->step, ranges, stream);
  streaming_->keep();
}

bool Speculation::settle(int64_t micro_batches, const OptimizerStep& step, StateReader* reader) {
  if (!streaming_) return false;
  streaming_ = nullptr;
  if (pause_ > 0) {
    --pause_;
    return false;
  }
  const OptimizerStep& expected = expected_->step;
  const bool holds = next_ == work_.size() && micro_batches == expected_->micro_batches &&
                     !step.skipped && step.step == expected.step && step.rate == expected.rate &&
                     step.betas == expected.betas && step.gradient_scale == expected.gradient_scale;
  if (holds) {
    exchange(reader);
    in_a_row_ = 0;
    return false;
  }
  ++redone_;
  if (++in_a_row_ >= 2) pause_ = int64_t{1} << std::min<int64_t>(in_a_row_ - 1, 10);
  return true;
}

void Speculation::exchange(StateReader* reader) {
  for (auto& [storage, tensors] : shadows_) {
    for (size_t i = 0; i < storage->states.size(); ++i)
      std::swap(storage->states[i].tensor, tensors[first_state_lane + i]);
    const bool narrow = !storage->values_are_masters;
    if (narrow) std::swap(storage->masters, tensors[masters_lane]);
    Tensor& values = tensors[narrow ? values_lane(*storage) : masters_lane];
    if (storage->stays_whole) {
      const Tensor whole = narrow
                               ? storage->low_precision(storage->state_begin, storage->state_numel)
                               : storage->masters;
      if (reader) reader->wait_until_read(whole);
      copy(values, whole, device_.compute());
    } else {
      std::swap(storage->trainable.shard, values);
      if (!narrow) storage->masters = storage->trainable.shard;
    }
    storage->updated = true;
  }
}

void Speculation::cancel() {
  streaming_ = nullptr;
  expected_.reset();
}

std::vector<Tensor> Speculation::shadows() const {
  std::vector<Tensor> all;
  for (const Shadow& shadow : shadows_)
    for (const Tensor& tensor : shadow.tensors)
      if (tensor) all.push_back(tensor);
  return all;
}

}  // namespace zg::zero
