#include "zerograd/zero/states/residency.h"

#include <algorithm>

#include "zerograd/zero/states/transfer.h"

namespace zg::zero {

void gather_in_buckets(const Tensor& shard, const Tensor& whole, const std::string& name,
                       int64_t bucket, Communicator& comm,
                       std::vector<Communicator::Ticket>& tickets) {
  const int64_t step = std::max<int64_t>(1, bucket / comm.size());
  for (int64_t begin = 0; begin < shard.numel(); begin += step)
    tickets.push_back(
        comm.all_gather(shard, whole, name, {begin, std::min(step, shard.numel() - begin)}));
}

namespace {

bool rests_in_file(const Storage& storage) {
  return in_file(storage.trainable.shard) || in_file(storage.frozen.shard);
}

int64_t shard_numel(const Storage& storage) {
  const Tensor &trainable = storage.trainable.shard, &frozen = storage.frozen.shard;
  return (trainable ? trainable.numel() : 0) + (frozen ? frozen.numel() : 0);
}

}  // namespace

Residency::Residency(std::vector<Storage>& storages, Communicator& comm, const Config& config)
    : storages_(storages), comm_(comm), config_(config), states_(storages.size()) {}

void Residency::start(TapeMode mode) {
  finish();
  mode_ = static_cast<size_t>(mode);
}

void Residency::finish() noexcept {
  if (!order_.empty()) orders_[mode_].swap(order_);
  order_.clear();
  for (size_t index = 0; index < states_.size(); ++index) {
    if (states_[index].users > 0) continue;
    try {
      if (states_[index].gathering) complete(index);
    } catch (...) {
      // ignored: the group has failed, so its worker no longer uses the buffer, and the next call
      // reports the error
    }
    evict(index);
  }
}

void Residency::acquire(size_t index) {
  State& state = states_[index];
  if (storages_[index].stays_whole) {
    ++state.users;
    return;
  }
  order_.push_back(index);
  // A storage that is being prefetched is not Evictable, because no unit has used it yet.
  for (size_t other = 0; other < states_.size(); ++other)
    if (other != index && states_[other].users == 0 && !states_[other].gathering) evict(other);
  if (!storages_[index].trainable.whole && !storages_[index].frozen.whole) gather(index);
  if (state.gathering) complete(index);
  ++state.users;
  prefetch();
}

void Residency::release(size_t index) noexcept { --states_[index].users; }

void Residency::gather(size_t index) {
  Storage& storage = storages_[index];
  for (Values* values : {&storage.trainable, &storage.frozen}) {
    if (values->empty()) continue;
    const PurposeScope purpose(values->shard.device(), Purpose::parameter);
    const NameScope name(values->shard.device(), storage.name + " values");
    values->whole =
        Tensor::empty({values->flat.padded}, values->shard.dtype(), values->shard.device());
  }
  State& state = states_[index];
  state.gathering = true;
  if (!rests_in_file(storage)) return exchange(index);
  for (size_t i = 0; i < 2; ++i) {
    const Values& values = i == 0 ? storage.trainable : storage.frozen;
    if (values.empty()) continue;
    const PurposeScope purpose(values.shard.device(), Purpose::parameter);
    const Device& device = values.shard.device();
    const bool passes_through = comm_.size() > 1 || !host_reaches(values.whole);
    if (passes_through)
      state.shards[i] =
          Tensor::empty(values.shard.shape(), values.shard.dtype(), device, host_space(device));
    state.read = start_swap(values.shard, passes_through ? state.shards[i] : values.whole,
                            {storage.name, " values"});
  }
}

// Gathers the shards of all ranks on every rank; on one rank, copies the parameters to the device.
// The shards must be in memory.
void Residency::exchange(size_t index) {
  Storage& storage = storages_[index];
  State& state = states_[index];
  for (size_t i = 0; i < 2; ++i) {
    const Values& values = i == 0 ? storage.trainable : storage.frozen;
    if (values.empty()) continue;
    const Tensor& shard = state.shards[i] ? state.shards[i] : values.shard;
    if (comm_.size() == 1)
      traced_copy(shard, values.whole, storage.name, " values");
    else
      gather_in_buckets(shard, values.whole, storage.name + " values",
                        config_.allgather_bucket_size, comm_, state.tickets);
  }
  if (!config_.overlap_comm && !state.tickets.empty()) comm_.wait(state.tickets.back());
}

void Residency::complete(size_t index) {
  State& state = states_[index];
  state.gathering = false;
  if (rests_in_file(storages_[index])) {
    const Values& values =
        storages_[index].trainable.empty() ? storages_[index].frozen : storages_[index].trainable;
    if (!values.empty()) wait_for_swap(values.shard.device(), state.read);
    if (state.shards[0] || state.shards[1]) exchange(index);
  }
  if (!state.tickets.empty()) comm_.wait_on_device(state.tickets.back());
  state.tickets.clear();
  state.shards = {};
}

void Residency::evict(size_t index) noexcept {
  Storage& storage = storages_[index];
  if (storage.stays_whole) return;
  storage.trainable.whole = {};
  storage.frozen.whole = {};
}

void Residency::prefetch() {
  const std::vector<size_t>& last = orders_[mode_];
  if (!config_.overlap_comm || last.size() <= order_.size() ||
      !std::equal(order_.begin(), order_.end(), last.begin()))
    return;
  const size_t next = last[order_.size()];
  const Storage& storage = storages_[next];
  if (storage.trainable.whole || storage.frozen.whole || states_[next].gathering) return;
  if (storage.trainable.flat.padded + storage.frozen.flat.padded > config_.prefetch_bucket_size)
    return;
  if (rests_in_file(storage) && shard_numel(storages_[order_.back()]) + shard_numel(storage) >
                                    config_.offload.parameter_buffer)
    return;
  gather(next);
}

}  // namespace zg::zero
