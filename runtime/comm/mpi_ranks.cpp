// MpiRanks: how the run of all ranks as processes begins and ends.
#include <algorithm>
#include <cstdio>
#include <iterator>

#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/comm/mpi_comm.h"
#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cpu {

MpiRanks::MpiRanks(const ProcessRank& place, const ProcessOptions& options, const Device& device)
    : MpiRanks(std::make_shared<MpiWorld>(place, options), options, device) {}

MpiRanks::MpiRanks(const std::shared_ptr<MpiWorld>& world, const ProcessOptions& options,
                   const Device& device)
    : MpiCommunicator(world, world->all(), device, control_poll_interval),
      dumps_(options.dump_collectives),
      told_to_end_(options.told_to_end),
      timeout_s_(options.timeout_s),
      same_(options.same) {
  worker_ = std::thread([this] { serve(); });
  await_end_or([this] { return connected_; }, 2, "MPI did not start");
  if (connected_) return;
  worker_.join();
  std::rethrow_exception(failure_);
}

MpiRanks::~MpiRanks() {
  if (!worker_.joinable()) return;
  stop();
  worker_.join();
}

void MpiRanks::finish() {
  world_->owner_waits(group_.get());
  stop();
  await_end_or([] { return false; }, 3, "MPI did not end");
  worker_.join();
  if (failure_) std::rethrow_exception(failure_);
}

void MpiRanks::abort(const std::string& cause) noexcept {
  MpiCommunicator::abort(cause);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, 1s, [&] { return failure_ || ended_; });
}

void MpiRanks::dump() {
  if (dumps_) world_->dump_logs();
}

void MpiRanks::serve() {
  try {
    connect();
    {
      std::lock_guard lock(mutex_);
      connected_ = true;
    }
    changed_.notify_all();
    work();
    if (!failed_here()) world_->leave();
  } catch (...) {
    std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
  if (connected_ && failed_here()) await_owner();
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
}

bool MpiRanks::failed_here() {
  std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

void MpiRanks::connect() {
  RankIdentity own{.process = ProcessId::own()};
  for (size_t i = 0; i < std::min(same_.size(), std::size(own.same)); ++i)
    std::snprintf(own.same[i], sizeof own.same[i], "%s", same_[i].second.c_str());
  const Backend* backend = backend_of(device_.type());
  if (backend && backend->transports.endpoint)
    own.endpoint = backend->transports.endpoint(device_.index(), rank_ == 0);
  const std::vector<RankIdentity> identities = world_->connect(own);
  for (size_t rank = 0; rank < identities.size(); ++rank)
    for (size_t i = 0; i < same_.size(); ++i)
      if (std::strcmp(identities[rank].same[i], identities[0].same[i]) != 0)
        throw ConfigError(
            difference(same_[i].first, static_cast<int>(rank), identities[rank], identities[0]));
  std::vector<TransportEndpoint> endpoints;
  endpoints.reserve(identities.size());
  for (const RankIdentity& identity : identities) endpoints.push_back(identity.endpoint);
  choose_transport(endpoints);
}

// An owner that still computes sees the failure at its next collective; a stalled one never does.
void MpiRanks::await_owner() {
  std::unique_lock lock(mutex_);
  const auto end = std::chrono::steady_clock::now() + failure_grace;
  while (!stop_ && !world_->owner_saw_failure()) {
    if (std::chrono::steady_clock::now() > end)
      end_process(fmt::format(
          "{}\nrank {} is still running the program's code and cannot be ended from outside; "
          "ending the process",
          describe(failure_), rank_));
    changed_.wait_for(lock, control_poll_interval);
  }
}

void MpiRanks::end_process(const std::string& text) {
  dump();
  print_line(stderr, "error: {}", text);
  std::fflush(nullptr);
  std::_Exit(4);
}

// MPI_Init and MPI_Finalize have no deadlines of their own.
template <class Done>
void MpiRanks::await_end_or(const Done& done, double timeouts, const char* what) {
  std::unique_lock lock(mutex_);
  const auto start = std::chrono::steady_clock::now();
  const auto longest = std::chrono::duration<double>(timeouts * timeout_s_ + 1);
  const auto over = [&] { return ended_ || done(); };
  while (!changed_.wait_for(lock, control_poll_interval, over)) {
    const bool told = !world_->is_up() && told_to_end_ && told_to_end_();
    if (!told && std::chrono::steady_clock::now() - start < longest) continue;
    end_process(fmt::format("CommError: rank {}/{} ends: {}{}", rank_, size_, what,
                            told ? " before a peer failed, and the launcher ends this process"
                                 : " within the timeout"));
  }
}

}  // namespace zg::cpu

namespace zg {

void run_processes(const std::function<void(Communicator&, const Device&)>& f,
                   const ProcessOptions& options) {
  const ProcessRank place = process_rank().value_or(ProcessRank{});
  if (options.same.size() > std::size(cpu::RankIdentity{}.same))
    throw ConfigError("run_processes: expected at most 8 values to compare");
  DeviceOptions device_options = options.device;
  if (device_options.threads == 0) device_options.threads = threads_per_process(place.local_size);
  const bool is_cpu = options.type == Device::Type::cpu;
  const Device device =
      device_of_rank(options.type, is_cpu ? place.rank : place.local_rank, device_options);
  const RankScope scope(device, place.rank);
  if (place.size == 1)
    return run_local(1, f,
                     {.timeout_s = options.timeout_s,
                      .device = device_options,
                      .type = options.type,
                      .dump_collectives = options.dump_collectives});
  cpu::MpiRanks communicator(place, options, device);
  try {
    f(communicator, device);
    communicator.finish();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    communicator.abort(cpu::describe(error));
    communicator.dump();
    std::rethrow_exception(cpu::of_rank(error, place.rank, place.size));
  }
}

}  // namespace zg
