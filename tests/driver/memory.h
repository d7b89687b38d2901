#pragma once

#include <level_zero/ze_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace zg::test_driver {

struct Device;

struct Allocation {
  std::byte* begin = nullptr;
  size_t bytes = 0;
  ze_memory_type_t type = ZE_MEMORY_TYPE_UNKNOWN;
  Device* device = nullptr;      ///< null: the host's
  std::byte* mapping = nullptr;  ///< with a guard page before and behind
  size_t mapped = 0;

  bool holds(const void* p) const { return p >= begin && p < begin + (bytes ? bytes : 1); }
};

/// Everything that was allocated through Level Zero. New memory holds 0xFF, which is NaN in every
/// dtype; the last byte of an allocation lies before a guard page, and what room is left between
/// it and its guard pages is watched. Where the driver is strict, a device's memory
/// can be reached only while a device works. Guarded by the driver's mutex.
class Memory {
 public:
  /// Null: the system or the device has no more.
  std::byte* allocate(size_t bytes, size_t alignment, ze_memory_type_t type, Device* device);
  /// Addresses that nobody can reach, aligned to virtual_page, with guard pages around them; null:
  /// the system has no more.
  static std::byte* reserve(size_t bytes);
  static void free_reserved(std::byte* begin, size_t bytes);
  /// Memory of a device behind reserved addresses; what follows another such range joins it.
  bool map(std::byte* begin, size_t bytes, Device* device);
  bool unmap(std::byte* begin, size_t bytes);  ///< false: not all of it was mapped
  /// Memory of the process becomes the host's of Level Zero, until it is released.
  void bring_in(std::byte* begin, size_t bytes);
  bool release(std::byte* begin, size_t bytes);  ///< false: not all of it was brought in
  static constexpr size_t virtual_page = size_t{64} << 10;
  void free(const Allocation& allocation);
  const Allocation* find(const void* p) const;  ///< null: not of Level Zero
  /// With the guard pages, and what lies between them and the first byte.
  const Allocation* find_near(const void* p) const;
  /// An allocation beside whose bytes something was written, before a guard page; or null.
  const Allocation* find_touched() const;

  /// Lets devices and the host reach the memory of devices, or the host no more.
  void open();
  void close();

 private:
  void add(const Allocation& allocation) {
    all_[reinterpret_cast<uintptr_t>(allocation.begin)] = allocation;
  }
  void join(std::byte* begin, size_t bytes, ze_memory_type_t type, Device* device);
  bool cut(std::byte* begin, size_t bytes);

  std::map<uintptr_t, Allocation> all_;
  bool is_open_ = false;
};

/// From now on a signal about an address says first what lies there.
void explain_faults(const Memory& memory);
/// What this thread does for a device, or null.
inline thread_local const char* device_does = nullptr;

}  // namespace zg::test_driver
