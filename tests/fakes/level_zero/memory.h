#pragma once

#include <level_zero/ze_api.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace zg::test_driver {

struct Device;

struct Allocation {
  std::byte* begin = nullptr;
  size_t bytes = 0;
  ze_memory_type_t type = ZE_MEMORY_TYPE_UNKNOWN;
  Device* device = nullptr;      ///< null: host memory
  std::byte* mapping = nullptr;  ///< with a guard page before and after it
  size_t mapped = 0;

  bool holds(const void* p) const { return p >= begin && p < begin + (bytes ? bytes : 1); }
};

/// All memory allocated through Level Zero. New memory is filled with 0xFF, which is NaN in every
/// dtype. An allocation ends just before a guard page. Unused bytes between it and its guard pages
/// are checked for writes. In strict mode, device memory is accessible only while a device
/// executes. Guarded by the driver's mutex.
class Memory {
 public:
  /// Null: the system or the device is out of memory.
  std::byte* allocate(size_t bytes, size_t alignment, ze_memory_type_t type, Device* device);
  /// Reserves inaccessible addresses, aligned to virtual_page, with guard pages around them. Null:
  /// the system has no more.
  static std::byte* reserve(size_t bytes);
  static void free_reserved(std::byte* begin, size_t bytes);
  /// Maps device memory at reserved addresses. Adjacent mapped ranges are merged.
  bool map(std::byte* begin, size_t bytes, Device* device);
  bool unmap(std::byte* begin, size_t bytes);  ///< false: not all of it was mapped
  /// Imports memory of the process as Level Zero host memory until release().
  void import_host(std::byte* begin, size_t bytes);
  bool release(std::byte* begin, size_t bytes);  ///< false: not all of it was imported
  static constexpr size_t virtual_page = size_t{64} << 10;
  void free(const Allocation& allocation);
  const Allocation* find(const void* p) const;  ///< null: not allocated through Level Zero
  /// Like find(), but also for addresses in guard pages and between them and the allocation.
  const Allocation* find_near(const void* p) const;
  /// An allocation with a write between its bytes and a guard page; or null.
  const Allocation* find_touched() const;

  /// Makes device memory accessible, or inaccessible.
  void open();
  void close();

 private:
  void add(const Allocation& allocation) {
    all_[reinterpret_cast<uintptr_t>(allocation.begin)] = allocation;
  }
  void add_range(std::byte* begin, size_t bytes, ze_memory_type_t type, Device* device);
  bool remove_range(std::byte* begin, size_t bytes);

  std::map<uintptr_t, Allocation> all_;
  bool is_open_ = false;
};

/// Installs a signal handler that prints what is at the faulting address.
void explain_faults(const Memory& memory);
/// The operation that this thread executes for a device; null: none.
inline thread_local const char* device_does = nullptr;

}  // namespace zg::test_driver
