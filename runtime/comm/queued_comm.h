#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "zerograd/runtime/comm/call.h"
#include "zerograd/runtime/comm/collective_log.h"
#include "zerograd/runtime/comm/transport.h"

namespace zg::cpu {

/// Base of every transport. It checks, counts and queues collectives. work(), which a thread of the
/// transport calls, runs them in order. On an accelerator a collective begins after the device has
/// finished all work that was queued before it: that thread waits for an event, not the caller. If
/// a kernel found an error in that work, the collective fails. It is done when its results are in
/// memory. The thread waits for that, too, so it sees a collective that hangs on the device.
class QueuedCommunicator : public Communicator {
 public:
  using StepNumber = std::shared_ptr<std::atomic<int64_t>>;  ///< shared by a rank's groups

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Ticket all_gather(const Tensor& shard, const Tensor& full, const std::string& name,
                    Chunk chunk) override;
  Ticket reduce_scatter(const Tensor& full, const Tensor& shard, bool fresh, Combine combine,
                        const std::string& name, Chunk chunk) override;
  Ticket all_reduce(const Tensor& x, const std::string& name) override;
  Ticket broadcast(const Tensor& x, int root, const std::string& name) override;
  Ticket barrier(const std::string& name) override;
  Ticket all_to_all(const Pieces& sent, const Pieces& received, const std::string& name) override;
  Ticket scatter(const Pieces& full, const Tensor& x, int root, const std::string& name) override;
  void wait(Ticket ticket) override;
  bool is_done(Ticket ticket) override;
  void wait_on_device(Ticket ticket) override;
  void set_step(int64_t step) override { *step_ = step; }
  WireCounts wire() const override { return counts_; }
  std::string transport() const override { return transport_; }
  void sum_by_library() override;

 protected:
  /// `watch_every` 0: watch() is never called.
  QueuedCommunicator(int rank, const Members& members, StepNumber step,
                     std::shared_ptr<CollectiveLog> log, const Device& device,
                     std::chrono::milliseconds watch_every)
      : rank_(rank),
        size_(members.size()),
        members_(members),
        step_(std::move(step)),
        log_(std::move(log)),
        device_(device),
        stream_(device.make_stream("communication")),
        watch_every_(watch_every) {}

  /// Called on the thread of work(), or on the caller's thread when the group has one rank.
  virtual void run(const Job& job, Ticket ticket) = 0;
  /// run() calls this once all peers have arrived; a trace shows the time before it as a wait.
  void note_arrival(const Job& job);
  /// A transport calls this when all work of the job is queued on `stream_`. From then on the
  /// rank's own thread may take the job's tensors away.
  void note_queued(const Job& job);
  virtual void watch() {}  ///< called on the same thread while no collective runs
  /// Called with the exception of run() or watch() before any thread that waits receives it.
  virtual void failed(const std::exception_ptr&) {}
  /// Called without a lock when the rank's own thread starts or stops to wait for this group.
  virtual void owner_waits(bool waits) = 0;
  virtual void owner_saw_failure() {}  ///< the rank's own thread receives the failure

  /// True if `active_transport_` moves the data. run() itself moves data on another type of device
  /// than the ranks', such as texts in host memory.
  bool uses_transport(const Job& job) const {
    return active_transport_ && job.output && job.output.device().type() == device_.type();
  }
  void work();  ///< until stop(), or until run() or watch() throws
  void stop();  ///< runs all queued jobs first
  /// Starts a thread that runs work(), unless the group has one rank.
  void start_worker();
  /// Ends the worker, from the destructor of the final class. A rank that throws reports its error
  /// only after all its communicators are destroyed. It first calls leave(true): it leaves this
  /// group as a failed rank, and its peers wait for the report. Otherwise leave(false) comes last.
  void end_worker(const std::function<void(bool fails)>& leave);
  /// Those members as numbers among all ranks.
  Members members_of(std::span<const int> members, const std::string& name) const;

  const int rank_, size_;  // in the group
  const Members members_;
  const StepNumber step_;
  const std::shared_ptr<CollectiveLog> log_;
  const Device device_;
  const std::unique_ptr<Stream> stream_;         ///< run() launches its copies and additions on it
  std::unique_ptr<Transport> active_transport_;  ///< null: run() moves all data itself
  std::string transport_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread worker_;
  bool stop_ = false;
  std::exception_ptr failure_;

 private:
  Ticket exchange(Collective op, const Pieces& sent, const Pieces& received, int root,
                  const std::string& name);
  Ticket enqueue(Job job);
  Tensor window_for(Collective op, const Tensor& full, int64_t count);
  void load_kernels(const Job& job);
  void await_inputs(const Job& job);
  template <class Ready>
  void await(std::unique_lock<std::mutex>& lock, Ticket ticket, const Ready& ready);
  void release_jobs(Ticket ticket);
  void fail(std::unique_lock<std::mutex>& lock);
  void run_logged(const Job& job, Ticket ticket);
  void record(const Job& job, Ticket ticket, int64_t begin_ns) const;
  std::vector<Trace::Call::Output> outputs_of(const Job& job) const;
  [[noreturn]] void throw_failure();
  bool await_job(std::unique_lock<std::mutex>& lock);

  const int exceptions_ = std::uncaught_exceptions();
  const std::chrono::milliseconds watch_every_;
  WireCounts counts_{};
  std::set<std::tuple<Combine, DType, DType>> combines_loaded_;  // with the dtypes of piece, shard
  std::deque<Job> jobs_;
  CommWindow window_;
  bool by_library_ = false;
  Ticket next_ = 0, done_ = 0;  // number of queued and of finished jobs
  /// The job done_ is on the device, up to this mark of stream_, if on_device_ is done_ + 1.
  std::shared_ptr<StreamMark> end_;
  Ticket on_device_ = 0;
  int64_t arrived_ns_ = -1;  // when all peers had arrived at the traced job; -1: not yet
};

}  // namespace zg::cpu
