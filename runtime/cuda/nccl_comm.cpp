#include "zerograd/runtime/cuda/nccl.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>

#include "zerograd/runtime/comm/call.h"
#include "zerograd/runtime/comm/process_id.h"
#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/cuda/collective_gate.h"
#include "zerograd/runtime/cuda/stream.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cuda {
namespace {

using Clock = std::chrono::steady_clock;
/// NCCL reports a dead peer as a network error. A moment later the communicator, which watches its
/// peers, knows which rank it was, and `await` throws an error that names the rank.
constexpr auto wait_for_cause = std::chrono::milliseconds(300);

NcclType type_of(DType dtype) {
  if (dtype == DType::f32) return NcclType::f32;
  if (dtype == DType::bf16) return NcclType::bf16;
  if (dtype == DType::f16) return NcclType::f16;
  raise<DTypeError>("reduce_scatter by NCCL: expected f32, bf16 or f16, got {}", name_of(dtype));
}

bool is_on_device(const Tensor& tensor) { return tensor.buffer()->space() == Space::device; }

class NcclTransport final : public Transport {
 public:
  NcclTransport(const NcclId& id, int rank, int size, int index)
      : nccl_(*nccl()), id_(id), rank_(rank), size_(size), index_(index) {}
  ~NcclTransport() override { abort(); }

  void run(const cpu::Job& job, Stream& stream, const Await& await,
           const std::function<void()>& queued) override {
    check_connections();
    const RunningCollective running;
    const OnDevice on(index_);
    stream_ = handle(stream);
    try {
      // Connect in the first collective, so that its deadline covers the connection and errors name
      // the collective.
      if (!comm_) {
        NcclConfig config;
        check(nccl_.comm_init_rank_config(&comm_, size_, id_, rank_, &config));
        settle(await);
      }
      if (job.call.count > 0) move(job, stream, await);
      queued();
      await([this] { return settled() && is_idle(); });
    } catch (...) {
      abort();  // without it the stream would never become idle
      throw;
    }
  }

 private:
  void check_connections() const {
    if (const int streams = streams_on(index_); streams > hardware_connections())
      raise<ConfigError>(
          "NCCL: {} streams on cuda:{} share {} hardware connections, so that collectives of two "
          "groups could wait for each other; expected CUDA_DEVICE_MAX_CONNECTIONS of {} or more, "
          "at most 32; unset it, use fewer groups of ranks, or ZG_CUDA_COMM=direct",
          streams, index_, hardware_connections(), streams);
  }

  void move(const cpu::Job& job, Stream& stream, const Await& await) {
    switch (job.call.op) {
      case Collective::all_gather:
        return gather(job, stream, await);
      case Collective::reduce_scatter:
        return job.by_library && is_on_device(job.call.input) ? sum_by_library(job, stream, await)
                                                              : fold(job, stream, await);
      case Collective::all_reduce: {
        std::byte* const x = job.output.raw();
        check(nccl_.all_reduce(x, x, static_cast<size_t>(job.output.numel()), NcclType::i64,
                               NcclOperation::sum, comm_, stream_));
        return settle(await);
      }
      case Collective::broadcast:
        return broadcast(job, stream, await);
      case Collective::barrier:
        return;
      case Collective::all_to_all:
      case Collective::scatter:
        copy(job.call.sent_to(rank_), job.received_from(rank_), stream);
        return exchange([&](int peer) { return job.call.sent_to(peer); },
                        [&](int peer) { return job.received_from(peer); }, await);
    }
  }

  void broadcast(const cpu::Job& job, Stream& stream, const Await& await) {
    const int64_t bytes = job.output.bytes();
    const bool on_device = is_on_device(job.output), sends = rank_ == job.root;
    const int64_t step = on_device ? bytes : job.window.bytes();
    for (int64_t from = 0; from < bytes; from += step) {
      const auto count = static_cast<size_t>(std::min(step, bytes - from));
      std::byte* const part = job.output.raw() + from;
      std::byte* const place = on_device ? part : job.window.raw();
      if (sends && !on_device) stream.copy(place, part, count);
      check(nccl_.broadcast(place, place, count, NcclType::u8, job.root, comm_, stream_));
      settle(await);
      if (!sends && !on_device) stream.copy(part, place, count);
    }
  }

  void gather(const cpu::Job& job, Stream& stream, const Await& await) {
    const int64_t shard_numel = job.output.numel() / size_;
    const auto place = [&](int peer) {
      return job.output.flat(peer * shard_numel + job.chunk.begin, job.chunk.count);
    };
    const std::byte* const shard = job.call.input.raw();
    const auto bytes = static_cast<size_t>(job.call.input.bytes());
    if (!is_on_device(job.output)) return gather_through_window(job, stream, place, await);
    const Tensor own = place(rank_);
    if (own.raw() != shard) stream.copy(own.raw(), shard, bytes);
    if (job.chunk.count == shard_numel) {
      check(nccl_.all_gather(own.raw(), job.output.raw(), bytes, NcclType::u8, comm_, stream_));
      return settle(await);
    }
    exchange([&](int) { return own; }, place, await);
  }

  // NCCL accepts device memory only.
  template <class PlaceOf>
  void gather_through_window(const cpu::Job& job, Stream& stream, const PlaceOf& place,
                             const Await& await) {
    const int64_t step = job.window.bytes() / size_, bytes = job.call.input.bytes();
    for (int64_t from = 0; from < bytes; from += step) {
      const int64_t count = std::min(step, bytes - from);
      const auto slot = [&](int peer) { return job.window.raw() + peer * count; };
      stream.copy(slot(rank_), job.call.input.raw() + from, static_cast<size_t>(count));
      check(nccl_.all_gather(slot(rank_), slot(0), static_cast<size_t>(count), NcclType::u8, comm_,
                             stream_));
      settle(await);
      for (int peer = 0; peer < size_; ++peer)
        stream.copy(place(peer).raw() + from, slot(peer), static_cast<size_t>(count));
    }
  }

  /// reduce_scatter through a window of fixed size, in as many rounds as needed. The ranks' terms
  /// are added in a fixed order.
  void fold(const cpu::Job& job, Stream& stream, const Await& await) {
    const Tensor& full = job.call.input;
    const auto [begin, numel] = job.chunk;
    const bool on_device = is_on_device(full);
    const int slots =
        on_device ? size_ : 2 * size_;  // the second half holds data copied from the host
    const int64_t slot_bytes = job.window.bytes() / slots / arena_granule * arena_granule;
    const int64_t step = slot_bytes / size_of(full.dtype());
    for (int64_t from = begin; from < begin + numel; from += step) {
      const int64_t count = std::min(step, begin + numel - from);
      const auto piece = [&](int peer) {
        return full.flat(peer * job.output.numel() + from, count);
      };
      const auto slot = [&](int i) {
        return job.window.alias(i * slot_bytes, {count}, full.dtype());
      };
      for (int peer = 0; peer < size_; ++peer)
        if (!on_device && peer != rank_) copy(piece(peer), slot(size_ + peer), stream);
      exchange([&](int peer) { return on_device ? piece(peer) : slot(size_ + peer); }, slot, await);
      for (int peer = 0; peer < size_; ++peer)
        job.combine(peer == rank_ ? piece(peer) : slot(peer), job.output.flat(from, count),
                    job.fresh && peer == 0, stream);
    }
  }

  void sum_by_library(const cpu::Job& job, Stream& stream, const Await& await) {
    const Tensor& full = job.call.input;
    const auto& [begin, numel] = job.chunk;
    const auto piece = [&](int peer) {
      return full.flat(peer * job.output.numel() + begin, numel);
    };
    const NcclType type = type_of(full.dtype());
    const auto count = static_cast<size_t>(numel);
    if (numel == job.output.numel()) {
      check(nccl_.reduce_scatter(full.raw(), piece(rank_).raw(), count, type, NcclOperation::sum,
                                 comm_, stream_));
    } else {
      check(nccl_.group_start());
      for (int peer = 0; peer < size_; ++peer)
        check(nccl_.reduce(piece(peer).raw(), piece(peer).raw(), count, type, NcclOperation::sum,
                           peer, comm_, stream_));
      check(nccl_.group_end());
    }
    settle(await);
    job.combine(piece(rank_), job.output.flat(begin, numel), job.fresh, stream);
  }

  /// Sends the tensor out(peer) to and receives in(peer) from every peer; nothing where it is
  /// empty.
  template <class Out, class In>
  void exchange(const Out& out, const In& in, const Await& await) {
    const auto bytes_of = [](const Tensor& tensor) { return static_cast<size_t>(tensor.bytes()); };
    check(nccl_.group_start());
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      if (const Tensor sent = out(peer); sent.numel() > 0)
        check(nccl_.send(sent.raw(), bytes_of(sent), NcclType::u8, peer, comm_, stream_));
      if (const Tensor received = in(peer); received.numel() > 0)
        check(nccl_.recv(received.raw(), bytes_of(received), NcclType::u8, peer, comm_, stream_));
    }
    check(nccl_.group_end());
    settle(await);
  }

  /// Returns when the NCCL call is queued on the stream. Later work on the stream runs after it.
  void settle(const Await& await) {
    await([this] { return settled(); });
  }

  bool settled() {
    NcclResult state = NcclResult::success;
    check(nccl_.comm_get_async_error(comm_, &state));
    if (state == NcclResult::success || state == NcclResult::in_progress)
      return state == NcclResult::success;
    if (!broken_) broken_ = Clock::now();
    if (Clock::now() >= *broken_ + wait_for_cause) check(state);
    return false;
  }

  bool is_idle() const {
    const cudaError_t state = cudaStreamQuery(stream_);
    if (state == cudaErrorNotReady) return false;
    cuda::check(state, "cudaStreamQuery");
    return true;
  }

  void check(NcclResult result) const {
    if (result != NcclResult::success && result != NcclResult::in_progress)
      raise<DeviceError>("NCCL: {}; try NCCL_DEBUG=WARN", nccl_.get_error_string(result));
  }

  // ncclCommAbort selects its device and at the end the previous one. If no context is current,
  // that is device 0, and selecting it creates a context there. So a context is made current first.
  void abort() noexcept {
    if (!comm_) return;
    try {
      const OnDevice on(index_);
      nccl_.comm_abort(comm_);
    } catch (const DeviceError&) {
      nccl_.comm_abort(comm_);
    }
    comm_ = nullptr;
  }

  const Nccl& nccl_;
  const NcclId id_;
  const int rank_, size_, index_;
  NcclComm comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::optional<Clock::time_point> broken_;
};

TransportEndpoint endpoint_of(int index, bool first) {
  TransportEndpoint own;
  char bus[64] = {};
  cuda::check(cudaDeviceGetPCIBusId(bus, sizeof bus, index), "cudaDeviceGetPCIBusId");
  const std::string device = fmt::format("{}, GPU {}", cpu::ProcessId::own().host, bus);
  std::snprintf(own.device, sizeof own.device, "%s", device.c_str());
  const Nccl* library = nccl();
  if (!library) {
    std::snprintf(own.absence, sizeof own.absence, "%s", nccl_absence().c_str());
  } else if (first) {
    NcclId id;
    // ncclGetUniqueId fails on a machine without a network. Ranks that share a GPU need no id.
    if (const NcclResult result = library->get_unique_id(&id); result != NcclResult::success)
      std::snprintf(own.absence, sizeof own.absence, "no id for the ranks: %s",
                    library->get_error_string(result));
    else
      std::memcpy(own.id, id.bytes, sizeof own.id);
  }
  return own;
}

std::string absence(std::span<const TransportEndpoint> endpoints) {
  std::string why;
  for (size_t rank = 0; rank < endpoints.size() && why.empty(); ++rank) {
    why = endpoints[rank].absence;
    for (size_t other = 0; other < rank && why.empty(); ++other)
      if (std::strcmp(endpoints[rank].device, endpoints[other].device) == 0)
        why = fmt::format("ranks {} and {} share {}", other, rank, endpoints[rank].device);
  }
  if (!why.empty() && requires_nccl())
    raise<ConfigError>(
        "ZG_CUDA_COMM=nccl, but {}; expected NCCL with a network, and a GPU for every rank; try "
        "fewer ranks or ZG_CUDA_COMM=direct",
        why);
  return why;
}

std::unique_ptr<Transport> make(std::span<const TransportEndpoint> endpoints, int rank, int index) {
  NcclId id;
  std::memcpy(id.bytes, endpoints[0].id, sizeof id.bytes);
  return std::make_unique<NcclTransport>(id, rank, static_cast<int>(endpoints.size()), index);
}

}  // namespace

TransportFactory nccl_transports() {
  return {.endpoint = endpoint_of, .absence = absence, .name = describe_nccl, .make = make};
}

}  // namespace zg::cuda
