#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/hpu/api.h"
#include "zerograd/runtime/trace.h"

namespace zg::hpu {

/// An asynchronous immediate command list whose commands run in the order of the calls: Level Zero
/// itself gives them none, so a barrier follows each.
class Queue {
 public:
  explicit Queue(ze_device_handle_t device);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  ze_device_handle_t device() const { return device_; }
  /// Both addresses are in device memory or in memory of zeMemAllocHost.
  void copy(void* to, const void* from, size_t bytes);
  void fill_zero(void* to, size_t bytes);
  /// `done`: an event that the launch signals, or null.
  void launch(ze_kernel_handle_t kernel, ze_group_count_t groups, const char* name,
              ze_event_handle_t done);

  /// Blocks the host until all that was queued is done.
  void wait();
  /// A point in the queue that the host can wait for; points are numbered 0 and 1, each waited for
  /// before it is set again.
  void mark(int point);
  void wait_for(int point);

 private:
  static constexpr int points = 2;
  void barrier(ze_event_handle_t event = nullptr);
  ze_event_handle_t event(int point) const { return events_[point]; }

  const ze_device_handle_t device_;
  ze_command_list_handle_t list_ = nullptr;
  ze_event_pool_handle_t pool_ = nullptr;
  ze_event_handle_t events_[points + 1] = {};  // the last one is wait()'s
  bool marked_[points] = {};
};

/// Host memory that the device can access. Copies from and to other memory of the process go
/// through it. It has two halves: one is filled while the other is being copied.
class Staging {
 public:
  explicit Staging(Queue& queue) : queue_(queue) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Queues the copy; `from` may be changed at once.
  void to_device(void* to, const void* from, size_t bytes);
  /// Returns when the copy is done.
  void to_host(void* to, const void* from, size_t bytes);

 private:
  static constexpr size_t half_bytes = size_t{4} << 20;
  std::byte* half(int i);

  Queue& queue_;
  std::byte* memory_ = nullptr;  // taken at first use
  int next_ = 0;
};

/// How long the device itself took for kernels, for traces.
class KernelTimes {
 public:
  explicit KernelTimes(ze_device_handle_t device);
  ~KernelTimes();  ///< launches that signal its events must be done
  KernelTimes(const KernelTimes&) = delete;
  KernelTimes& operator=(const KernelTimes&) = delete;

  /// The event that the next launch must signal.
  ze_event_handle_t next(const char* kernel);
  /// Spans on the track "kernels" of all launches since the last call, which must be done; none
  /// without a trace. Another stream than "compute" has a track of its own. Lengths and distances
  /// come from the device's clock, which is not related to the trace's clock: the last span ends
  /// now.
  void tell(Trace* trace, int rank, const std::string& stream);

 private:
  void add_pool();
  /// Time between two timestamps of a counter that wraps around.
  double nanoseconds(uint64_t from, uint64_t to) const;

  const ze_device_handle_t device_;
  double nanoseconds_of_a_tick_ = 0.0;
  uint64_t mask_ = 0;
  std::vector<ze_event_pool_handle_t> pools_;
  std::vector<ze_event_handle_t> events_;
  std::vector<std::string> kernels_;  // kernel names of the first events, in launch order
};

}  // namespace zg::hpu
