#include "zerograd/runtime/comm/mpi_comm.h"

#include <algorithm>
#include <cstdlib>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cpu {
namespace {

constexpr int64_t largest_message = int64_t{256} << 20;  // MPI counts in int
constexpr int64_t window_bytes = int64_t{1} << 20;       // where pieces from all peers arrive

}  // namespace

// --- HostWindows ---

HostWindows::HostWindows(int rank, int size, bool on_host)
    : rank_(rank), size_(size), on_host_(on_host) {}

// Allocated at the first use: many groups never need them.
void HostWindows::take_windows() {
  window_.resize(window_bytes);
  outgoing_.resize(on_host_ ? 0 : window_bytes);
}

void HostWindows::run(const Job& job, Stream& stream, const Exchange& exchange) {
  switch (job.call.op) {
    case Collective::all_gather:
      return gather(job, stream, exchange);
    case Collective::reduce_scatter:
      return combine(job, stream, exchange);
    case Collective::all_reduce:
      return sum(job, stream, exchange);
    case Collective::broadcast:
      return broadcast(job, stream, exchange);
    case Collective::barrier:
      return;
  }
}

void HostWindows::gather(const Job& job, Stream& stream, const Exchange& exchange) {
  const int64_t shard_numel = job.output.numel() / size_;
  const auto destination = [&](int peer) {
    return job.output.flat(peer * shard_numel + job.chunk.begin, job.chunk.count).raw();
  };
  const std::byte* shard = job.call.input.raw();
  const int64_t bytes = job.call.input.bytes();
  if (destination(rank_) != shard)
    stream.copy(destination(rank_), shard, static_cast<size_t>(bytes));
  if (!host_reaches(job.call.input) || !host_reaches(job.output))
    return pass(
        bytes, [&](int) { return shard; },
        [&](int peer, int64_t offset, const std::byte* from, size_t length) {
          stream.copy(destination(peer) + offset, from, length);
        },
        stream, exchange);
  for (int64_t begin = 0; begin < bytes; begin += largest_message)
    exchange(
        std::min(largest_message, bytes - begin), [&](int) { return shard + begin; },
        [&](int peer) { return destination(peer) + begin; });
}

/// Receives `bytes` from each peer through the window; calls take(peer, begin, from, bytes).
void HostWindows::pass(int64_t bytes, const Out& out, const Take& take, Stream& stream,
                       const Exchange& exchange) {
  if (size_ == 1) return;
  take_windows();
  const int64_t share = window_bytes / (size_ - 1) / 64 * 64;
  const auto slot = [&](std::vector<std::byte>& window, int peer) {
    return window.data() + (peer - (peer > rank_)) * share;
  };
  for (int64_t begin = 0; begin < bytes; begin += share) {
    const int64_t length = std::min(share, bytes - begin);
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_ && !outgoing_.empty())
        stream.copy(slot(outgoing_, peer), out(peer) + begin, static_cast<size_t>(length));
    stream.synchronize();
    exchange(
        length,
        [&](int peer) { return outgoing_.empty() ? out(peer) + begin : slot(outgoing_, peer); },
        [&](int peer) { return slot(window_, peer); });
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) take(peer, begin, slot(window_, peer), static_cast<size_t>(length));
  }
}

// Each peer gets its piece of `full`. The piece that it sends replaces that one, so no memory
// beyond the tensors is needed, and the sum has the order of ranks that are threads.
void HostWindows::combine(const Job& job, Stream& stream, const Exchange& exchange) {
  const auto piece_for = [&job](int peer) {
    return job.call.input.flat(peer * job.output.numel() + job.chunk.begin, job.chunk.count);
  };
  pass(
      piece_for(0).bytes(), [&](int peer) { return piece_for(peer).raw(); },
      [&](int peer, int64_t offset, const std::byte* from, size_t bytes) {
        stream.copy(piece_for(peer).raw() + offset, from, bytes);
      },
      stream, exchange);
  const Tensor shard = job.output.flat(job.chunk.begin, job.chunk.count);
  for (int peer = 0; peer < size_; ++peer)
    job.combine(piece_for(peer), shard, job.fresh && peer == 0, stream);
}

void HostWindows::broadcast(const Job& job, Stream& stream, const Exchange& exchange) {
  const bool sends = rank_ == job.root;
  const bool direct = host_reaches(job.output);
  if (!direct) take_windows();
  const int64_t longest = direct ? largest_message : window_bytes, bytes = job.output.bytes();
  for (int64_t begin = 0; begin < bytes; begin += longest) {
    const int64_t length = std::min(longest, bytes - begin);
    std::byte* const range = job.output.raw() + begin;
    std::byte* const buffer = direct ? range : window_.data();
    if (sends && !direct) {
      stream.copy(buffer, range, static_cast<size_t>(length));
      stream.synchronize();
    }
    exchange(
        length, [&](int) { return sends ? buffer : nullptr; },
        [&](int peer) { return peer == job.root ? buffer : nullptr; });
    if (!sends && !direct) stream.copy(range, buffer, static_cast<size_t>(length));
    if (!direct) stream.synchronize();  // the next round overwrites the window
  }
}

void HostWindows::sum(const Job& job, Stream& stream, const Exchange& exchange) {
  const auto bytes_of_sums = static_cast<size_t>(job.output.bytes());
  std::vector<int64_t> sums(bytes_of_sums / sizeof(int64_t));
  stream.copy(sums.data(), job.output.raw(), bytes_of_sums);
  pass(
      job.output.bytes(), [&](int) { return job.output.raw(); },
      [&](int, int64_t offset, const std::byte* from, size_t bytes) {
        const auto* values = reinterpret_cast<const int64_t*>(from);
        for (size_t i = 0; i < bytes / sizeof(int64_t); ++i)
          sums[static_cast<size_t>(offset) / sizeof(int64_t) + i] += values[i];
      },
      stream, exchange);
  stream.copy(job.output.raw(), sums.data(), bytes_of_sums);
}

// --- MpiCommunicator ---

namespace {

/// A group of some, with a worker of its own.
class MpiSubgroup final : public MpiCommunicator {
 public:
  MpiSubgroup(std::shared_ptr<MpiWorld> world, std::shared_ptr<MpiGroup> group,
              const Device& device)
      : MpiCommunicator(std::move(world), std::move(group), device, {}) {
    TransportEndpoint own;
    const Backend* backend = backend_of(device.type());
    if (size_ > 1 && backend && backend->transports.endpoint)
      own = backend->transports.endpoint(device.index(), rank_ == 0);
    std::vector<TransportEndpoint> endpoints(static_cast<size_t>(size_), own);
    if (size_ > 1 && backend && backend->transports.endpoint) {
      const auto bytes_of = [](TransportEndpoint& endpoint) {
        return reinterpret_cast<std::byte*>(&endpoint);
      };
      Meeting meeting{.group = group_.get(), .deadline = world_->deadline()};
      meeting.place = fmt::format("the making of group '{}'", members_.group);
      world_->owner_waits(group_.get());
      world_->exchange(
          meeting, sizeof own, data_tag + static_cast<int>(group_->number),
          [&](int) { return bytes_of(own); },
          [&](int member) { return bytes_of(endpoints[static_cast<size_t>(member)]); });
      world_->owner_waits(nullptr);
    }
    choose_transport(endpoints);
    start_worker();
  }

  ~MpiSubgroup() override {
    end_worker([this](bool fails) { world_->leave(group_, fails); });
  }
};

}  // namespace

MpiCommunicator::MpiCommunicator(std::shared_ptr<MpiWorld> world, std::shared_ptr<MpiGroup> group,
                                 const Device& device, std::chrono::milliseconds watch_every)
    : QueuedCommunicator(group->own_member, group->members, world->step(), group->log, device,
                         watch_every),
      world_(std::move(world)),
      group_(std::move(group)),
      windows_(rank_, size_, device.type() == Device::Type::cpu) {}

std::unique_ptr<Communicator> MpiCommunicator::group(std::span<const int> members,
                                                     const std::string& name) {
  check_group(members, name);
  return std::make_unique<MpiSubgroup>(world_, world_->make_group(members_of(members, name)),
                                       device_);
}

void MpiCommunicator::abort(const std::string& cause) noexcept {
  world_->note_owner_saw_failure();
  world_->abort(cause);
}

void MpiCommunicator::choose_transport(const std::vector<TransportEndpoint>& endpoints) {
  transport_ = "MPI";
  const Backend* backend = backend_of(device_.type());
  if (!backend || !backend->transports.endpoint || size_ == 1) return;
  const std::string absence = backend->transports.absence(endpoints);
  transport_ = absence.empty() ? backend->transports.name()
                               : "MPI and memory of the host; not by NCCL: " + absence;
  if (absence.empty())
    active_transport_ = backend->transports.make(endpoints, rank_, device_.index());
}

void MpiCommunicator::run(const Job& job, Ticket ticket) {
  Meeting meeting{.group = group_.get(), .sequence = ticket, .call = &job.call};
  if (size_ > 1) {
    world_->arrive(meeting);
    note_arrival(job);
  }
  if (uses_transport(job)) {
    run_transport(job, meeting);
  } else {
    const int tag = data_tag + static_cast<int>(group_->number);
    windows_.run(job, *stream_,
                 [&](int64_t bytes, const HostWindows::Out& out, const HostWindows::In& in) {
                   world_->exchange(meeting, bytes, tag, out, in);
                 });
  }
  world_->finished(*group_, ticket);
}

void MpiCommunicator::run_transport(const Job& job, Meeting& meeting) {
  meeting.by_transport = true;
  try {
    const auto await = [&](const std::function<bool()>& done) {
      bool over = false;
      meeting.awaited = [&](int) { return !(over = over || done()); };
      world_->await_members(meeting, 1000);
    };
    active_transport_->run(job, *stream_, await, [&] { note_queued(job); });
  } catch (const DeviceError&) {
    world_->throw_peer_failure(meeting);  // if a peer failed, report the peer's error
    world_->throw_own_failure(describe(std::current_exception()));
  }
}

}  // namespace zg::cpu
