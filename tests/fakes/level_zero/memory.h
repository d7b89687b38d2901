#pragma once

#include <level_zero/ze_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace zg::test_driver {

struct Device;

struct Allocation {
  std::byte* begin = nullptr;
  size_t bytes = 0;
  ze_memory_type_t type = ZE_MEMORY_TYPE_UNKNOWN;
  Device* device = nullptr;      ///< null: host memory
  bool imported = false;         ///< memory of the process, which only copies may use
  std::byte* mapping = nullptr;  ///< with a guard page before and after it
  size_t mapped = 0;

  bool holds(const void* p) const { return p >= begin && p < begin + (bytes ? bytes : 1); }
};

/// All memory allocated through Level Zero. New memory is filled with 0xFF, which is NaN in every
/// dtype. An allocation ends just before a guard page. Unused bytes between it and its guard pages
/// are checked for writes. In strict mode, device memory is accessible only while a device
/// executes; with PEERS=1 the memory of other devices only as far as the command's own ranges name
/// it. Guarded by the driver's mutex.
class Memory {
 public:
  /// Null: the system or the device is out of memory.
  std::byte* allocate(size_t bytes, size_t alignment, ze_memory_type_t type, Device* device);
  /// Reserves inaccessible addresses, aligned to large_page, with guard pages around them. Null:
  /// the system has no more.
  static std::byte* reserve(size_t bytes);
  static void free_reserved(std::byte* begin, size_t bytes);
  /// Maps a chunk of device memory at reserved addresses. Each chunk stays an allocation of its
  /// own.
  bool map(std::byte* begin, size_t bytes, Device* device);
  bool unmap(std::byte* begin, size_t bytes);  ///< false: not all of it was mapped
  /// Imports memory of the process until release(). Imports are never joined: each has an address
  /// of its own on the device, which kernels do not learn.
  void import_host(std::byte* begin, size_t bytes);
  bool release(std::byte* begin, size_t bytes);  ///< false: not all of it was imported
  static constexpr size_t large_page = size_t{2} << 20;
  /// The size and the address of a mapping of so many bytes are multiples of this.
  static size_t page_of(size_t bytes);
  void free(const Allocation& allocation);
  const Allocation* find(const void* p) const;  ///< null: not allocated through Level Zero
  /// Like find(), but also for addresses in guard pages and between them and the allocation.
  const Allocation* find_near(const void* p) const;
  /// An allocation with a write between its bytes and a guard page; or null.
  const Allocation* find_touched() const;

  /// Makes the device's memory accessible, and the chunks of other devices that hold `places`.
  void open(const Device* device, const std::vector<const void*>& places);
  void close();

 private:
  void add(const Allocation& allocation) {
    all_[reinterpret_cast<uintptr_t>(allocation.begin)] = allocation;
  }
  bool is_open(const Device* device) const;
  bool remove(std::byte* begin, size_t bytes);  ///< false: there is no such range

  std::map<uintptr_t, Allocation> all_;
  const Device* open_ = nullptr;  ///< whose memory is accessible; null: none
  std::vector<const void*> opened_places_;
};

/// Installs a signal handler that prints what is at the faulting address.
void explain_faults(const Memory& memory);
/// The operation that this thread executes for a device; null: none.
inline thread_local const char* device_does = nullptr;

}  // namespace zg::test_driver
