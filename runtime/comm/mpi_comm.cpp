#include "zerograd/runtime/comm/mpi_comm.h"

#include <algorithm>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cpu {
namespace {

constexpr int64_t largest_message = int64_t{256} << 20;  // MPI counts in int
constexpr int64_t window_bytes = int64_t{1} << 20;       // where pieces from all peers arrive

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {tensor.raw(), static_cast<size_t>(tensor.bytes())};
}

/// Those of [begin, begin + count) that exist.
template <class Byte>
std::span<Byte> range(std::span<Byte> bytes, int64_t begin, int64_t count) {
  const size_t first = std::min(static_cast<size_t>(begin), bytes.size());
  return bytes.subspan(first, std::min(static_cast<size_t>(count), bytes.size() - first));
}

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
    case Collective::all_to_all:
    case Collective::scatter:
      return exchange_pieces(job, stream, exchange);
  }
}

int64_t HostWindows::longest_of(const Out& out, const In& in) const {
  size_t longest = 0;
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) longest = std::max({longest, out(peer).size(), in(peer).size()});
  return static_cast<int64_t>(longest);
}

/// Between memories that MPI can reach.
void HostWindows::pass_directly(const Out& out, const In& in, const Exchange& exchange) const {
  const int64_t bytes = longest_of(out, in);
  for (int64_t begin = 0; begin < bytes; begin += largest_message)
    exchange([&](int peer) { return range(out(peer), begin, largest_message); },
             [&](int peer) { return range(in(peer), begin, largest_message); });
}

/// Through the windows.
void HostWindows::pass(const Out& out, const In& in, Stream& stream, const Exchange& exchange) {
  const int64_t bytes = longest_of(out, in);
  if (bytes == 0) return;
  take_windows();
  const int64_t share = window_bytes / (size_ - 1) / 64 * 64;
  const auto slot = [&](std::vector<std::byte>& window, int peer, size_t length) {
    return std::span(window.data() + (peer - (peer > rank_)) * share, length);
  };
  for (int64_t begin = 0; begin < bytes; begin += share) {
    const auto sent = [&](int peer) { return range(out(peer), begin, share); };
    const auto received = [&](int peer) { return range(in(peer), begin, share); };
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_ && !outgoing_.empty())
        stream.copy(slot(outgoing_, peer, 0).data(), sent(peer).data(), sent(peer).size());
    stream.synchronize();
    exchange(
        [&](int peer) -> std::span<const std::byte> {
          return outgoing_.empty() ? sent(peer) : slot(outgoing_, peer, sent(peer).size());
        },
        [&](int peer) { return slot(window_, peer, received(peer).size()); });
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_)
        stream.copy(received(peer).data(), slot(window_, peer, 0).data(), received(peer).size());
  }
}

void HostWindows::gather(const Job& job, Stream& stream, const Exchange& exchange) {
  const int64_t shard_numel = job.output.numel() / size_;
  const auto destination = [&](int peer) {
    return bytes_of(job.output.flat(peer * shard_numel + job.chunk.begin, job.chunk.count));
  };
  const std::span<std::byte> shard = bytes_of(job.call.input);
  const auto out = [&](int) { return shard; };
  if (destination(rank_).data() != shard.data())
    stream.copy(destination(rank_).data(), shard.data(), shard.size());
  if (host_reaches(job.call.input) && host_reaches(job.output))
    pass_directly(out, destination, exchange);
  else
    pass(out, destination, stream, exchange);
}

void HostWindows::exchange_pieces(const Job& job, Stream& stream, const Exchange& exchange) {
  const auto out = [&](int peer) { return bytes_of(job.call.sent_to(peer)); };
  const auto in = [&](int peer) { return bytes_of(job.received_from(peer)); };
  copy(job.call.sent_to(rank_), job.received_from(rank_), stream);
  if (host_reaches(job.call.input) && host_reaches(job.output))
    pass_directly(out, in, exchange);
  else
    pass(out, in, stream, exchange);
}

// Each peer gets its piece of `full`. The piece that it sends replaces that one, so no memory
// beyond the tensors is needed, and the sum has the order of ranks that are threads.
void HostWindows::combine(const Job& job, Stream& stream, const Exchange& exchange) {
  const auto piece_for = [&job](int peer) {
    return job.call.input.flat(peer * job.output.numel() + job.chunk.begin, job.chunk.count);
  };
  const auto bytes_for = [&](int peer) { return bytes_of(piece_for(peer)); };
  pass(bytes_for, bytes_for, stream, exchange);
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
    const std::span<std::byte> part = range(bytes_of(job.output), begin, longest);
    const std::span<std::byte> buffer = direct ? part : std::span(window_.data(), part.size());
    if (sends && !direct) {
      stream.copy(buffer.data(), part.data(), part.size());
      stream.synchronize();
    }
    exchange([&](int) { return sends ? buffer : std::span<std::byte>(); },
             [&](int peer) { return peer == job.root ? buffer : std::span<std::byte>(); });
    if (!sends && !direct) stream.copy(part.data(), buffer.data(), part.size());
    if (!direct) stream.synchronize();  // the next round overwrites the window
  }
}

void HostWindows::sum(const Job& job, Stream& stream, const Exchange& exchange) {
  const std::span<std::byte> own = bytes_of(job.output);
  const auto numel = static_cast<size_t>(job.output.numel());
  std::vector<int64_t> all(numel * static_cast<size_t>(size_));
  const auto of_rank = [&](int rank) {
    return std::span(all.data() + numel * static_cast<size_t>(rank), numel);
  };
  pass([&](int) { return own; }, [&](int peer) { return std::as_writable_bytes(of_rank(peer)); },
       stream, exchange);
  stream.copy(of_rank(rank_).data(), own.data(), own.size());
  stream.synchronize();
  const std::span<int64_t> sums = of_rank(0);
  for (int rank = 1; rank < size_; ++rank)
    for (size_t i = 0; i < numel; ++i) sums[i] += of_rank(rank)[i];
  stream.copy(own.data(), sums.data(), own.size());
  stream.synchronize();
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
      const auto bytes_at = [](TransportEndpoint& endpoint) {
        return std::as_writable_bytes(std::span(&endpoint, 1));
      };
      Meeting meeting{.group = group_.get(), .deadline = world_->deadline()};
      meeting.place = fmt::format("the making of group '{}'", members_.group);
      world_->owner_waits(group_.get());
      world_->exchange(
          meeting, data_tag + static_cast<int>(group_->number), [&](int) { return bytes_at(own); },
          [&](int member) { return bytes_at(endpoints[static_cast<size_t>(member)]); });
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
    windows_.run(job, *stream_, [&](const HostWindows::Out& out, const HostWindows::In& in) {
      world_->exchange(meeting, tag, out, in);
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
