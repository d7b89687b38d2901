#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/hpu/api.h"
#include "zerograd/runtime/trace.h"

namespace zg::hpu {

/// An asynchronous immediate command list whose commands run in the order of the calls. Level Zero
/// does not order them, so each command is followed by a barrier.
class Queue {
 public:
  explicit Queue(ze_device_handle_t device);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  ze_device_handle_t device() const { return device_; }
  /// Both ranges are device memory or memory of zeMemAllocHost.
  void copy(void* to, const void* from, size_t bytes);
  void fill_zero(void* to, size_t bytes);
  /// The kernel signals the event `done` when it ends. `done` may be null.
  void launch(ze_kernel_handle_t kernel, ze_group_count_t groups, const char* name,
              ze_event_handle_t done);

  /// Blocks the host until all queued commands are done.
  void wait();
  /// Queues a signal that wait_for(point) waits for. There are two points, 0 and 1. A point must be
  /// waited for before it is marked again.
  void mark(int point);
  void wait_for(int point);

 private:
  static constexpr int points = 2;
  void barrier(ze_event_handle_t event = nullptr);
  ze_event_handle_t event(int point) const { return events_[point]; }

  const ze_device_handle_t device_;
  ze_command_list_handle_t list_ = nullptr;
  ze_event_pool_handle_t pool_ = nullptr;
  ze_event_handle_t events_[points + 1] = {};  // the last one belongs to wait()
  bool marked_[points] = {};
};

/// Host memory that the device can access. Copies between the device and ordinary memory of the
/// process pass through it. It has two halves: one is filled while the other is copied.
class Staging {
 public:
  explicit Staging(Queue& queue) : queue_(queue) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Queues the copy. `from` may be changed at once: its bytes have been read.
  void to_device(void* to, const void* from, size_t bytes);
  /// Returns after the bytes have arrived.
  void to_host(void* to, const void* from, size_t bytes);

 private:
  static constexpr size_t half_bytes = size_t{4} << 20;
  std::byte* half(int i);

  Queue& queue_;
  std::byte* memory_ = nullptr;  // allocated at first use
  int next_ = 0;
};

/// The start and end times of kernels by the device's clock, for traces.
class KernelTimes {
 public:
  explicit KernelTimes(ze_device_handle_t device);
  ~KernelTimes();  ///< call it after all launches that signal its events are done
  KernelTimes(const KernelTimes&) = delete;
  KernelTimes& operator=(const KernelTimes&) = delete;

  /// The event that the next launch must signal.
  ze_event_handle_t next(const char* kernel);
  /// Adds a span to the trace for each launch since the last call; these launches must be done.
  /// Without a trace it only resets the events. The track is "kernels"; streams other than
  /// "compute" have tracks of their own. Durations and distances come from the device's clock,
  /// which has no fixed relation to the clock of the trace: the last span is placed so that it ends
  /// now.
  void record(Trace* trace, int rank, const std::string& stream);

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
