#pragma once

#include <cstddef>

#include "zerograd/runtime/hpu/api.h"

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
  /// Any of device memory and of what zeMemAllocHost gave.
  void copy(void* to, const void* from, size_t bytes);
  void fill_zero(void* to, size_t bytes);
  /// `done`: signalled by it, or null.
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

}  // namespace zg::hpu
