#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zerograd/runtime/hpu/api.h"
#include "zerograd/runtime/trace.h"

namespace zg::hpu {

/// The fault record that kernels write (kernels/hpu/tile.clh). op and name are addresses of string
/// literals of the host; a kernel only copies them.
struct Fault {
  int64_t found, op, name, value, place, limit;
};

/// An event that several threads and queues may wait for, with host memory beside it that a command
/// before the signal may write. Queues that signal it or wait for it keep it until the host has
/// seen the end of these commands.
struct SharedEvent {
  ze_event_handle_t handle = nullptr;
  Fault* fault = nullptr;     ///< what a command writes; its `found` is 0 before
  uint64_t signalled_at = 0;  ///< the number of the command that signals it
};
std::shared_ptr<SharedEvent> take_event(ze_device_handle_t device);

/// An asynchronous immediate command list whose commands run in the order of the calls. A driver
/// that does not order them itself (flag IN_ORDER of specification 1.7) gets a barrier after each.
class Queue {
 public:
  /// Copies on a copy engine, where the device has one, do not occupy the engines that compute.
  enum class Engine { compute, copy };
  explicit Queue(ze_device_handle_t device, Engine engine = Engine::compute);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  ze_device_handle_t device() const { return device_; }
  /// Both ranges are device memory, pinned memory or memory of zeMemAllocHost.
  void copy(void* to, const void* from, size_t bytes);
  void fill_zero(void* to, size_t bytes);
  /// The kernel signals the event `done` when it ends. `done` may be null.
  void launch(ze_kernel_handle_t kernel, ze_group_count_t groups, const char* name,
              ze_event_handle_t done);

  /// Queues the signal of the event, which take_event() returned.
  const std::shared_ptr<SharedEvent>& signal(std::shared_ptr<SharedEvent> event);
  std::shared_ptr<SharedEvent> signal() { return signal(take_event(device_)); }
  /// Commands that are queued from now on run after the signal of the event.
  void await(std::shared_ptr<SharedEvent> event);
  /// Blocks the host until this queue has signalled the event.
  void wait_for(const SharedEvent& event);
  /// Blocks the host until all queued commands are done. Returns at once if an earlier wait has
  /// seen their end.
  void wait();
  bool is_waited_for() const { return appended_ == waited_for_; }
  uint64_t appended() const { return appended_; }

 private:
  void append_barrier(ze_event_handle_t signals, ze_event_handle_t waits_for);
  /// After a command: orders it before the next.
  void end_command();

  const ze_device_handle_t device_;
  ze_command_list_handle_t list_ = nullptr;
  bool is_ordered_ = true;
  uint64_t appended_ = 0, waited_for_ = 0;  // numbers of commands
  std::vector<std::shared_ptr<SharedEvent>> events_in_use_;
};

/// Host memory that the device can access. Copies between the device and ordinary memory of the
/// process pass through it. It has two halves: one is filled while the other is copied. Small
/// copies lie one after the other in a half, so the host need not wait between them.
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
  /// Memory that the device does not use, in the current half or in the other one.
  std::byte* next(size_t bytes);

  Queue& queue_;
  std::byte* memory_ = nullptr;  // allocated at first use
  int current_ = 0;
  size_t used_ = 0;                       // bytes of the current half
  std::shared_ptr<SharedEvent> done_[2];  // after it the device has finished with the half
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
