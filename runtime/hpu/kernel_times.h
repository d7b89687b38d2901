#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/hpu/api.h"
#include "zerograd/runtime/trace.h"

namespace zg::hpu {

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
