#include "zerograd/runtime/hpu/staging.h"

#include <algorithm>
#include <cstring>

namespace zg::hpu {

Staging::~Staging() {
  if (!memory_) return;
  try {
    queue_.wait();
  } catch (...) {  // told before
  }
  api().memFree(driver().context, memory_);
}

std::byte* Staging::half(int i) {
  if (!memory_) {
    const ze_host_mem_alloc_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC};
    void* memory = nullptr;
    check(api().memAllocHost(driver().context, &wanted, 2 * half_bytes, 64, &memory),
          "zeMemAllocHost");
    memory_ = static_cast<std::byte*>(memory);
  }
  return memory_ + static_cast<size_t>(i) * half_bytes;
}

void Staging::to_device(void* to, const void* from, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t part = std::min(half_bytes, bytes - done);
    std::byte* const place = half(next_);
    queue_.wait_for(next_);
    std::memcpy(place, static_cast<const std::byte*>(from) + done, part);
    queue_.copy(static_cast<std::byte*>(to) + done, place, part);
    queue_.mark(next_);
    next_ = 1 - next_;
    done += part;
  }
}

void Staging::to_host(void* to, const void* from, size_t bytes) {
  // One half is copied out of while the other fills.
  size_t asked = 0;
  const auto ask = [&](int i) {
    if (asked == bytes) return size_t{0};
    const size_t part = std::min(half_bytes, bytes - asked);
    std::byte* const place = half(i);
    queue_.wait_for(i);
    queue_.copy(place, static_cast<const std::byte*>(from) + asked, part);
    queue_.mark(i);
    asked += part;
    return part;
  };
  int current = next_;
  size_t part = ask(current);
  for (size_t done = 0; done < bytes; current = 1 - current) {
    const size_t following = ask(1 - current);
    queue_.wait_for(current);
    std::memcpy(static_cast<std::byte*>(to) + done, half(current), part);
    done += part;
    part = following;
  }
}

}  // namespace zg::hpu
