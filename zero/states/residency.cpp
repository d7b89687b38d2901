#include "zerograd/zero/states/residency.h"

#include <algorithm>
#include <utility>

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

bool is_whole(const Storage& storage) { return storage.trainable.whole || storage.frozen.whole; }

int64_t whole_numel(const Storage& storage) {
  return storage.trainable.flat.padded + storage.frozen.flat.padded;
}

int64_t shard_numel(const Storage& storage) {
  const Tensor &trainable = storage.trainable.shard, &frozen = storage.frozen.shard;
  return (trainable ? trainable.numel() : 0) + (frozen ? frozen.numel() : 0);
}

}  // namespace

Residency::Residency(std::vector<Storage>& storages, Communicator& comm, const Config& config)
    : storages_(storages), comm_(comm), config_(config), states_(storages.size()) {}

Residency::~Residency() {
  for (size_t index = 0; index < states_.size(); ++index) {
    try {
      if (states_[index].gathering) wait_for_read(index);
    } catch (...) {  // ignored: after a failure the drive no longer uses the memory
    }
  }
}

void Residency::start(TapeMode mode) {
  finish();
  mode_ = static_cast<size_t>(mode);
}

void Residency::finish() noexcept {
  if (!order_.empty()) orders_[mode_].swap(order_);
  order_.clear();
  repeats_ = true;
  for (size_t index = 0; index < states_.size(); ++index) {
    State& state = states_[index];
    if (state.users > 0) continue;
    try {
      if (state.gathering) wait_for_read(index);
      if (!state.tickets.empty()) comm_.wait(state.tickets.back());
    } catch (...) {
      // ignored: the drive or the group has failed, so its worker no longer uses the buffer, and
      // the next call reports the error
    }
    state = {};
    evict(index);
  }
}

void Residency::acquire(size_t index) {
  State& state = states_[index];
  if (storages_[index].stays_whole) {
    storages_[index].open_values();
    ++state.users;
    return;
  }
  const std::vector<size_t>& last = orders_[mode_];
  repeats_ = repeats_ && order_.size() < last.size() && last[order_.size()] == index;
  order_.push_back(index);
  // A storage that is being prefetched is not evictable, because no unit has used it yet.
  for (auto next = held_.begin(); next != held_.end();) {
    const size_t other = *next++;
    if (other != index && states_[other].users == 0 && !states_[other].gathering) evict(other);
  }
  if (!is_whole(storages_[index])) gather(index);
  if (state.gathering) complete(index);
  prefetch();
  ++state.users;
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
  held_.insert(index);
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
    state.read.add(start_swap(values.shard, passes_through ? state.shards[i] : values.whole,
                              {storage.name, " values"}, /*ahead=*/true));
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

void Residency::wait_for_read(size_t index) {
  const Storage& storage = storages_[index];
  if (!rests_in_file(storage)) return;
  const Values& values = storage.trainable.empty() ? storage.frozen : storage.trainable;
  wait_for_swap(values.shard.device(), states_[index].read);
}

void Residency::complete(size_t index) {
  State& state = states_[index];
  state.gathering = false;
  wait_for_read(index);
  if (state.shards[0] || state.shards[1]) exchange(index);
  if (!state.tickets.empty()) comm_.wait_on_device(state.tickets.back());
  state.tickets.clear();
  state.shards = {};
}

void Residency::evict(size_t index) noexcept {
  Storage& storage = storages_[index];
  if (storage.stays_whole) return;
  held_.erase(index);
  storage.trainable.whole = {};
  storage.frozen.whole = {};
}

void Residency::prefetch() {
  const std::vector<size_t>& last = orders_[mode_];
  if (!config_.overlap_comm || !repeats_ || last.size() <= order_.size()) return;
  int64_t units = 0;     // that are gathered and not used yet
  int64_t ahead = 0;     // elements of those
  int64_t buffered = 0;  // elements of this rank that were read from a file
  for (const size_t index : held_) {
    const Storage& storage = storages_[index];
    if (states_[index].gathering) {
      ++units;
      ahead += whole_numel(storage);
    }
    if (rests_in_file(storage)) buffered += shard_numel(storage);
  }
  const auto begin = last.begin() + static_cast<std::ptrdiff_t>(order_.size());
  size_t previous = storages_.size();  // none
  for (auto next = begin; next != last.end(); ++next) {
    const size_t index = *next;
    const Storage& storage = storages_[index];
    if (std::exchange(previous, index) == index) continue;  // it stays whole
    // A unit that is used before is freed after that use, and cannot be gathered until then.
    if (std::find(begin, next, index) != next) return;
    if (states_[index].gathering) continue;
    if (is_whole(storage)) return;  // in use; those after it are gathered at its next use
    ++units;
    ahead += whole_numel(storage);
    if (units > config_.prefetch_units) return;
    if (ahead > config_.prefetch_bucket_size) return;
    if (rests_in_file(storage)) buffered += shard_numel(storage);
    if (rests_in_file(storage) && buffered > config_.offload.parameter_buffer) return;
    gather(index);
  }
}

}  // namespace zg::zero
