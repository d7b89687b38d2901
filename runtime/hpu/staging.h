#pragma once

#include <cstddef>

#include "zerograd/runtime/hpu/queue.h"

namespace zg::hpu {

/// Memory of the host that the device reaches, through which all other memory of the process comes
/// and goes. Two halves: one is filled while the other is on its way.
class Staging {
 public:
  explicit Staging(Queue& queue) : queue_(queue) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Queued; `from` may be used again at once.
  void to_device(void* to, const void* from, size_t bytes);
  /// Waits until the bytes are there.
  void to_host(void* to, const void* from, size_t bytes);

 private:
  static constexpr size_t half_bytes = size_t{4} << 20;
  std::byte* half(int i);

  Queue& queue_;
  std::byte* memory_ = nullptr;  // taken at first use
  int next_ = 0;
};

}  // namespace zg::hpu
