#include <algorithm>
#include <cstdio>
#include <exception>
#include <set>
#include <thread>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/comm/local_world.h"
#include "zerograd/runtime/comm/queued_comm.h"
#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/text/format.h"

namespace zg {

std::function<void(bool waits)>& on_wait_for_collectives() {
  thread_local std::function<void(bool waits)> function;
  return function;
}

namespace cpu {

/// How the members of a group exchange data. They use a library such as NCCL, or they read the
/// memory of their peers.
struct Transports {
  std::string transport = "memory of this process";
  std::vector<TransportEndpoint> endpoints =
      {};                          // one per member; empty: members read peers' memory
  bool kernels_read_peers = true;  // false: only copies of a stream read the peers' memory

  std::unique_ptr<Transport> make(int member, const Device& device) const {
    if (endpoints.empty()) return nullptr;
    return backend_of(device.type())->transports.make(endpoints, member, device.index());
  }
};

namespace {

Transports transports_of(Device::Type type, const Members& members);

/// One member of a LocalGroup, with the worker thread that its collectives run on.
class LocalCommunicator final : public QueuedCommunicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalWorld> world, std::shared_ptr<LocalGroup> group, int rank,
                    const Device& device)
      : QueuedCommunicator(rank, group->members(), world->step(group->members()[rank]),
                           group->log(rank), device, {}),
        world_(std::move(world)),
        group_(std::move(group)) {
    const Transports& transports = group_->transports();
    transport_ = transports.transport;
    active_transport_ = transports.make(rank, device);
    kernels_read_peers_ = transports.kernels_read_peers;
    start_worker();
  }

  ~LocalCommunicator() override {
    end_worker([this](bool fails) { world_->leave(*group_, rank_, fails); });
  }

  std::unique_ptr<Communicator> group(std::span<const int> members,
                                      const std::string& name) override {
    const int member = check_group(members, name);
    const auto make = [&](const Members& all) {
      return std::make_shared<const Transports>(transports_of(device_.type(), all));
    };
    return std::make_unique<LocalCommunicator>(
        world_, world_->join(members_[rank_], members_of(members, name), make), member, device_);
  }
  void abort(const std::string& cause) noexcept override {
    world_->note_saw_failure(members_[rank_]);
    world_->abort(members_[rank_], cause);
  }

 private:
  void run(const Job& job, Ticket ticket) override {
    const bool by_transport = uses_transport(job);
    Call call = job.call;
    if (by_transport) call.input = {};  // no peer reads it
    group_->meet(rank_, ticket, std::move(call), [&] {
      note_arrival(job);
      if (by_transport) return run_transport(job, ticket);
      run_on_peer_memory(job);
      stream_->synchronize();
    });
    if (by_transport) return;
    // all_reduce works in place, and peers may read the input until meet() returns. Therefore the
    // sum is written to the output here.
    if (job.call.op == Collective::all_reduce)
      stream_->copy(job.output.raw(), sums_.data(), sums_.size() * sizeof(int64_t));
  }

  void run_transport(const Job& job, Ticket ticket) {
    const auto deadline = group_->deadline();
    try {
      active_transport_->run(
          job, *stream_,
          [&](const std::function<bool()>& done) { group_->await(rank_, ticket, deadline, done); },
          [&] { note_queued(job); });
    } catch (const DeviceError& error) {
      world_->abort(members_[rank_], describe(std::current_exception()));
      throw CommError(world_->failure());
    }
  }

  void failed(const std::exception_ptr& error) override {
    if (!is_comm_error(error)) world_->abort(members_[rank_], describe(error));
  }
  void owner_saw_failure() override { world_->note_saw_failure(members_[rank_]); }
  void owner_waits(bool waits) override {
    world_->set_waits_in(members_[rank_], waits ? group_.get() : nullptr);
  }

  void run_on_peer_memory(const Job& job) {
    switch (job.call.op) {
      case Collective::all_gather:
        return gather(job);
      case Collective::reduce_scatter:
        return combine(job);
      case Collective::all_reduce:
        return sum(job);
      case Collective::broadcast: {
        const Tensor& sent = group_->input_of(job.root);
        if (rank_ != job.root)
          stream_->copy(job.output.raw(), sent.raw(), static_cast<size_t>(sent.bytes()));
        return;
      }
      case Collective::barrier:
        return;
      case Collective::all_to_all:
      case Collective::scatter:
        for (int peer = 0; peer < size_; ++peer)
          copy(group_->call_of(peer).sent_to(rank_), job.received_from(peer), *stream_);
        return;
    }
  }

  void gather(const Job& job) {
    const int64_t shard_numel = job.output.numel() / size_;
    for (int peer = 0; peer < size_; ++peer) {
      const Tensor& input = group_->input_of(peer);
      const Tensor shard = job.output.flat(peer * shard_numel + job.chunk.begin, job.chunk.count);
      if (shard.raw() != input.raw())
        stream_->copy(shard.raw(), input.raw(), static_cast<size_t>(input.bytes()));
    }
  }

  void combine(const Job& job) {
    const auto& [begin, numel] = job.chunk;
    const Tensor shard = job.output.flat(begin, numel);
    const int64_t first = rank_ * job.output.numel() + begin;
    const auto piece_of = [&](int peer) { return group_->input_of(peer).flat(first, numel); };
    if (!kernels_read_peers_) return combine_copies(job, piece_of, shard);
    for (int peer = 0; peer < size_; ++peer)
      job.combine(piece_of(peer), shard, job.fresh && peer == 0, *stream_);
  }

  /// Works in rounds. In each round, the same range of every peer's input is copied to the window.
  template <class Piece>
  void combine_copies(const Job& job, const Piece& piece_of, const Tensor& shard) {
    const DType dtype = job.call.input.dtype();
    const int64_t longest = job.window.bytes() / size_of(dtype);
    for (int64_t begin = 0; begin < shard.numel(); begin += longest) {
      const int64_t count = std::min(longest, shard.numel() - begin);
      const Tensor copied = job.window.alias(0, {count}, dtype);
      for (int peer = 0; peer < size_; ++peer) {
        const Tensor source = piece_of(peer).flat(begin, count);
        copy(source, copied, *stream_);
        job.combine(copied, shard.flat(begin, count), job.fresh && peer == 0, *stream_);
      }
    }
  }

  void sum(const Job& job) {
    sums_.assign(static_cast<size_t>(job.output.numel()), 0);
    std::vector<int64_t> values(sums_.size());
    for (int peer = 0; peer < size_; ++peer) {
      stream_->copy(values.data(), group_->input_of(peer).raw(), values.size() * sizeof(int64_t));
      stream_->synchronize();
      for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += values[i];
    }
  }

  const std::shared_ptr<LocalWorld> world_;
  const std::shared_ptr<LocalGroup> group_;
  bool kernels_read_peers_ = true;
  std::vector<int64_t> sums_;
};

int index_of_rank(Device::Type type, int rank) { return rank % std::max(1, Device::count(type)); }

/// True when the kernels of each member can read the memory of all other members.
bool ranks_reach(Device::Type type, const Members& members) {
  std::set<int> used;
  for (const int rank : members.ranks) used.insert(index_of_rank(type, rank));
  for (const int index : used)
    for (const int other : used) {
      if (backend_of(type)->reaches(index, other)) continue;
      // Between HPU devices, copies go through the memory of the host.
      if (type == Device::Type::hpu) return false;
      raise<Unsupported>(
          "ranks: cuda:{} cannot reach the memory of cuda:{}; expected GPUs with peer access to "
          "each other; try ranks as processes (mpirun), or CUDA_VISIBLE_DEVICES={}",
          index, other, index);
    }
  return true;
}

Transports transports_of(Device::Type type, const Members& members) {
  const Backend* backend = backend_of(type);
  if (!backend || members.size() == 1 || Device::count(type) == 0) return {};
  const TransportFactory& factory = backend->transports;
  Transports transports;
  if (!factory.endpoint) {
    transports.kernels_read_peers = ranks_reach(type, members);
    transports.transport =
        transports.kernels_read_peers ? "the peers' memory" : "memory of the host";
    return transports;
  }
  for (int member = 0; member < members.size(); ++member)
    transports.endpoints.push_back(
        factory.endpoint(index_of_rank(type, members[member]), member == 0));
  const std::string absence = factory.absence(transports.endpoints);
  transports.transport =
      absence.empty() ? factory.name() : "the peers' memory; not by NCCL: " + absence;
  if (!absence.empty()) {
    transports.endpoints.clear();
    transports.kernels_read_peers = ranks_reach(type, members);
  }
  return transports;
}

}  // namespace
}  // namespace cpu

Device device_of_rank(Device::Type type, int rank, const DeviceOptions& options) {
  const int index = cpu::index_of_rank(type, rank);
  DeviceOptions separate = options;
  separate.separate = true;
  return type == Device::Type::cuda  ? Device::cuda(index, options)
         : type == Device::Type::hpu ? Device::hpu(index, options)
                                     : Device::cpu(rank, separate);
}

int threads_per_rank(int ranks) { return cpu::threads_or(std::max(1, available_cores() / ranks)); }

void run_local(int ranks, const std::function<void(Communicator&, const Device&)>& f,
               const LocalOptions& options) {
  if (ranks < 1) raise<ConfigError>("ranks: expected 1 or more, got {}", ranks);
  const cpu::Members all = cpu::all_ranks(ranks);
  const auto transports =
      std::make_shared<const cpu::Transports>(cpu::transports_of(options.type, all));
  DeviceOptions device_options = options.device;
  if (device_options.threads == 0) device_options.threads = threads_per_rank(ranks);

  // The caller and the ranks' threads share this state. This function returns only after all
  // threads have ended. If one stalls after a failure, the process ends below.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::exception_ptr> errors;
    std::vector<bool> ended;
    int running = 0;
    std::exception_ptr cause;  // the first error that is no CommError
  };
  const auto shared = std::make_shared<Shared>();
  shared->errors.resize(static_cast<size_t>(ranks));
  shared->ended.resize(static_cast<size_t>(ranks));
  shared->running = ranks;
  const auto world = std::make_shared<cpu::LocalWorld>(ranks, options.timeout_s);

  // Called before the device releases its memory and files, which may take seconds.
  const auto note_cause = [shared](const std::exception_ptr& error) {
    if (cpu::is_comm_error(error)) return;
    std::lock_guard lock(shared->mutex);
    if (!shared->cause) shared->cause = error;
  };
  const auto run_rank = [=, &f](int rank) {
    std::exception_ptr error;
    on_wait_for_collectives() = [=](bool waits) { world->set_waits_for_collectives(rank, waits); };
    try {
      const Device device = device_of_rank(options.type, rank, device_options);
      const RankScope scope(device, rank);
      const auto group = world->join(rank, all, [&](const cpu::Members&) { return transports; });
      cpu::LocalCommunicator communicator(world, group, rank, device);
      try {
        f(communicator, device);
      } catch (...) {
        error = std::current_exception();
        note_cause(error);
        if (!cpu::is_comm_error(error)) communicator.abort(cpu::describe(error));
      }
    } catch (...) {
      error = std::current_exception();
      note_cause(error);
      world->note_saw_failure(rank);
      world->abort(rank, cpu::describe(error));
    }
    if (error) error = cpu::of_rank(error, rank, ranks);
    std::lock_guard lock(shared->mutex);
    shared->errors[static_cast<size_t>(rank)] = error;
    shared->ended[static_cast<size_t>(rank)] = true;
    --shared->running;
    shared->changed.notify_all();
  };
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run_rank, rank);
  } catch (const std::exception& error) {
    // The threads that already run use objects of this call. They must end before the call returns.
    const int rank = static_cast<int>(threads.size());
    const std::string cause = fmt::format(
        "ranks: the system has no thread for rank {} of {}: {}; try fewer ranks, or a higher limit "
        "(`ulimit -u`)",
        rank, ranks, error.what());
    world->abort(rank, cause);
    std::lock_guard lock(shared->mutex);
    shared->errors[static_cast<size_t>(rank)] = std::make_exception_ptr(OutOfMemory(cause));
    std::fill(shared->ended.begin() + rank, shared->ended.end(), true);
    shared->running -= ranks - rank;
  }

  {
    std::unique_lock lock(shared->mutex);
    const auto all_ended = [&] { return shared->running == 0; };
    // A rank that has neither ended nor received the failure.
    const auto one_computes = [&] {
      for (int rank = 0; rank < ranks; ++rank)
        if (!shared->ended[static_cast<size_t>(rank)] && !world->saw_failure(rank)) return true;
      return false;
    };
    while (!shared->changed.wait_for(lock, std::chrono::milliseconds(100), all_ended)) {
      if (!world->failed()) continue;
      // All collectives fail from now on. A rank that still computes receives the failure at its
      // next collective. One that has received it releases its memory and files, which may take
      // seconds.
      if (shared->changed.wait_for(lock, std::chrono::milliseconds(1500), all_ended)) break;
      if (!one_computes() && shared->changed.wait_for(
                                 lock, std::chrono::duration<double>(options.timeout_s), all_ended))
        break;
      if (options.dump_collectives) world->dump_logs();
      std::string stalled;
      for (int rank = 0; rank < ranks; ++rank)
        if (!shared->ended[static_cast<size_t>(rank)])
          stalled += (stalled.empty() ? "" : ", ") + std::to_string(rank);
      const std::string cause =
          shared->cause ? cpu::describe(shared->cause) : "CommError: " + world->failure();
      print_line(stderr,
                 "error: {}\nrank {} is still running the program's code and cannot be ended from "
                 "outside; ending the process",
                 cause, stalled);
      std::fflush(nullptr);
      std::_Exit(shared->cause ? cpu::exit_status_of(shared->cause) : 4);
    }
  }
  for (std::thread& thread : threads) thread.join();
  // Prefer an error that is not a CommError: the CommErrors of other ranks are its consequences.
  std::exception_ptr first;
  for (const std::exception_ptr& error : shared->errors) {
    if (!error) continue;
    if (!first || (cpu::is_comm_error(first) && !cpu::is_comm_error(error))) first = error;
  }
  if (!first) return;
  if (options.dump_collectives) world->dump_logs();
  std::rethrow_exception(first);
}

}  // namespace zg
