#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <thread>

#include "runtime/comm.h"
#include "runtime/cpu/local_group.h"
#include "runtime/error.h"

namespace zg {
namespace cpu {
namespace {

std::string describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& typed) {
    return std::string(typed.type()) + ": " + typed.what();
  } catch (const std::exception& other) {
    return other.what();
  } catch (...) {
    return "an unknown exception";
  }
}

bool is_comm_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

/// One rank of a LocalGroup, with the worker thread that its collectives run on.
class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank, int size, const Device& device)
      : group_(std::move(group)), rank_(rank), size_(size), device_(device) {
    if (size_ > 1) worker_ = std::thread([this] { work(); });
  }

  ~LocalCommunicator() override {
    group_->leave(rank_);
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (worker_.joinable()) worker_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Ticket all_gather(const Tensor& shard, const Tensor& full, const std::string& name,
                    Chunk chunk) override {
    chunk = check_all_gather(shard, full, chunk);
    count(Collective::all_gather, chunk.count * size_of(shard.dtype()) * (size_ - 1));
    const Call call{Collective::all_gather, shard.dtype(), chunk.count, name,
                    shard.flat(chunk.begin, chunk.count)};
    return enqueue({.call = call,
                    .output = full,
                    .chunk = chunk,
                    .action = [](LocalCommunicator& self, const Job& job) {
                      const int64_t shard_numel = job.output.numel() / self.size_;
                      for (int peer = 0; peer < self.size_; ++peer) {
                        const Tensor& input = self.group_->input_of(peer);
                        const Tensor place =
                            job.output.flat(peer * shard_numel + job.chunk.begin, job.chunk.count);
                        if (place.raw() != input.raw())
                          std::memcpy(place.raw(), input.raw(), static_cast<size_t>(input.bytes()));
                      }
                    }});
  }

  Ticket reduce_scatter(const Tensor& full, const Tensor& shard, bool fresh, Combine combine,
                        const std::string& name, Chunk chunk) override {
    chunk = check_reduce_scatter(full, shard, chunk);
    count(Collective::reduce_scatter, chunk.count * size_of(full.dtype()) * (size_ - 1));
    const Call call{Collective::reduce_scatter, full.dtype(), chunk.count, name, full};
    return enqueue({.call = call,
                    .output = shard,
                    .chunk = chunk,
                    .action =
                        [](LocalCommunicator& self, const Job& job) {
                          const auto& [begin, numel] = job.chunk;
                          const Tensor place = job.output.flat(begin, numel);
                          const int64_t first = self.rank_ * job.output.numel() + begin;
                          for (int peer = 0; peer < self.size_; ++peer)
                            job.combine(self.group_->input_of(peer).flat(first, numel), place,
                                        job.fresh && peer == 0, self.device_.compute());
                        },
                    .combine = combine,
                    .fresh = fresh});
  }

  Ticket all_reduce(const Tensor& x, const std::string& name) override {
    if (x.dtype() != DType::i64)
      throw DTypeError(std::string("all_reduce: expected i64, got ") + name_of(x.dtype()));
    count(Collective::all_reduce, x.bytes() * (size_ - 1));
    return enqueue({.call = {Collective::all_reduce, x.dtype(), x.numel(), name, x},
                    .output = x,
                    .action = [](LocalCommunicator& self, const Job& job) {
                      self.sums_.assign(static_cast<size_t>(job.output.numel()), 0);
                      for (int peer = 0; peer < self.size_; ++peer) {
                        const int64_t* values = self.group_->input_of(peer).data<int64_t>();
                        for (size_t i = 0; i < self.sums_.size(); ++i) self.sums_[i] += values[i];
                      }
                    }});
  }

  Ticket barrier(const std::string& name) override {
    count(Collective::barrier, 0);
    return enqueue({.call = {Collective::barrier, DType::u8, 0, name, {}},
                    .action = [](LocalCommunicator&, const Job&) {}});
  }

  void wait(Ticket ticket) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ > ticket || failure_; });
    if (done_ <= ticket) std::rethrow_exception(failure_);
    while (!jobs_.empty() && jobs_.front().finished) jobs_.pop_front();  // frees on this thread
  }

  void abort(const std::string& cause) noexcept override { group_->abort(rank_, cause); }
  void set_step(int64_t step) override { group_->set_step(rank_, step); }
  WireCounts wire() const override { return counts_; }

 private:
  struct Job {
    Call call;
    Tensor output;
    Chunk chunk;
    void (*action)(LocalCommunicator&, const Job&);
    Combine combine = nullptr;
    bool fresh = false;
    bool finished = false;
  };

  void count(Collective collective, int64_t bytes) {
    WireCount& count = counts_[static_cast<size_t>(collective)];
    ++count.calls;
    count.bytes += bytes;
  }

  Ticket enqueue(Job job) {
    std::unique_lock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    jobs_.push_back(std::move(job));
    const Ticket ticket = next_++;
    if (size_ > 1) {
      lock.unlock();
      changed_.notify_all();
    } else {
      run(jobs_.back(), ticket);
      finish(jobs_.back());
    }
    return ticket;
  }

  void run(const Job& job, Ticket ticket) {
    group_->meet(rank_, ticket, job.call, [&] { job.action(*this, job); });
    // A sum in place must not change what peers still read: it lands after the second meeting.
    if (job.call.op == Collective::all_reduce)
      std::memcpy(job.output.raw(), sums_.data(), sums_.size() * sizeof(int64_t));
  }

  void finish(Job& job) {
    job.finished = true;
    ++done_;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || done_ < next_; });
      if (done_ == next_ || failure_) {
        if (stop_) return;
        continue;
      }
      // deque: growing it at the back leaves references valid; the front goes in wait() only.
      Job& job =
          *std::find_if(jobs_.begin(), jobs_.end(), [](const Job& j) { return !j.finished; });
      const Ticket ticket = done_;
      lock.unlock();
      try {
        run(job, ticket);
        lock.lock();
        finish(job);
      } catch (...) {
        const std::exception_ptr error = std::current_exception();
        if (!is_comm_error(error)) group_->abort(rank_, describe(error));
        lock.lock();
        failure_ = error;
        changed_.notify_all();
        return;
      }
      changed_.notify_all();
    }
  }

  const std::shared_ptr<LocalGroup> group_;
  const int rank_, size_;
  const Device device_;
  WireCounts counts_{};
  std::vector<int64_t> sums_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  Ticket next_ = 0, done_ = 0;  // queued, finished
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread worker_;
};

}  // namespace
}  // namespace cpu

int threads_per_rank(int ranks) { return std::max(1, available_cores() / ranks); }

void run_local(int ranks, const std::function<void(Communicator&, const Device&)>& f,
               const LocalOptions& options) {
  if (ranks < 1) throw ConfigError("ranks: expected 1 or more, got " + std::to_string(ranks));
  DeviceOptions device_options = options.device;
  if (device_options.threads == 0) device_options.threads = threads_per_rank(ranks);

  // Shared with the threads: a stalled one may outlive this call's frame until the process ends.
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::exception_ptr> errors;
    std::vector<bool> ended;
    int running = 0;
  };
  const auto shared = std::make_shared<Shared>();
  shared->errors.resize(static_cast<size_t>(ranks));
  shared->ended.resize(static_cast<size_t>(ranks));
  shared->running = ranks;
  const auto group = std::make_shared<cpu::LocalGroup>(ranks, options.timeout_s);

  const auto run_rank = [=, &f](int rank) {
    std::exception_ptr error;
    try {
      const Device device = Device::cpu(rank, device_options);
      cpu::LocalCommunicator communicator(group, rank, ranks, device);
      try {
        f(communicator, device);
      } catch (...) {
        error = std::current_exception();
        if (!cpu::is_comm_error(error)) communicator.abort(cpu::describe(error));
      }
    } catch (...) {
      error = std::current_exception();
      group->abort(rank, cpu::describe(error));
    }
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
    // The ranks that run must end before anything that they use does.
    const int rank = static_cast<int>(threads.size());
    const std::string cause = "ranks: the system has no thread for rank " + std::to_string(rank) +
                              " of " + std::to_string(ranks) + ": " + error.what() +
                              "; try fewer ranks";
    group->abort(rank, cause);
    std::lock_guard lock(shared->mutex);
    shared->errors[static_cast<size_t>(rank)] = std::make_exception_ptr(OutOfMemory(cause));
    std::fill(shared->ended.begin() + rank, shared->ended.end(), true);
    shared->running -= ranks - rank;
  }

  {
    std::unique_lock lock(shared->mutex);
    const auto all_ended = [&] { return shared->running == 0; };
    while (!shared->changed.wait_for(lock, std::chrono::milliseconds(100), all_ended)) {
      if (!group->failed()) continue;
      // The group has given up; whoever computes on will see it at its next collective.
      if (shared->changed.wait_for(lock, std::chrono::milliseconds(1500), all_ended)) break;
      std::string stalled;
      for (int rank = 0; rank < ranks; ++rank)
        if (!shared->ended[static_cast<size_t>(rank)])
          stalled += (stalled.empty() ? "" : ", ") + std::to_string(rank);
      std::fprintf(stderr,
                   "error: CommError: %s\nrank %s is still in its own code and cannot be ended "
                   "from outside; ending the process\n",
                   group->failure().c_str(), stalled.c_str());
      std::fflush(nullptr);
      std::_Exit(4);
    }
  }
  for (std::thread& thread : threads) thread.join();
  // The cause before its consequences.
  std::exception_ptr first;
  for (const std::exception_ptr& error : shared->errors) {
    if (!error) continue;
    if (!first || (cpu::is_comm_error(first) && !cpu::is_comm_error(error))) first = error;
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace zg
