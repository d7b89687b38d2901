#include <mutex>
#include <utility>
#include <vector>

#include "runtime/arena.h"
#include "runtime/error.h"
#include "runtime/hpu/device.h"

namespace zg::hpu {
namespace {

/// The ranges of addresses that stand for memory of devices.
struct Ranges {
  std::mutex mutex;
  std::vector<std::pair<const std::byte*, const std::byte*>> held;

  static Ranges& all() {
    static Ranges& ranges = *new Ranges;
    return ranges;
  }
};

/// A range of addresses, with the device's memory mapped behind its beginning as it grows: freed
/// neighbours always merge, and what is reserved is what the device gave.
class DeviceMemory final : public ArenaMemory {
 public:
  explicit DeviceMemory(int index) : device_(handle_of(index)) {
    uint32_t count = 0;
    check(api().deviceGetMemoryProperties(device_, &count, nullptr), "zeDeviceGetMemoryProperties");
    std::vector<ze_device_memory_properties_t> parts(
        count, {.stype = ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES});
    check(api().deviceGetMemoryProperties(device_, &count, parts.data()),
          "zeDeviceGetMemoryProperties");
    uint64_t bytes = 0;
    for (const ze_device_memory_properties_t& part : parts) bytes += part.totalSize;
    size_t page = 0;
    check(api().virtualMemQueryPageSize(driver().context, device_, step, &page),
          "zeVirtualMemQueryPageSize");
    if (page == 0 || step % page != 0)
      throw DeviceError("hpu: memory comes in pages of " + std::to_string(page) +
                        " bytes; expected a divisor of " + std::to_string(step));
    // Holes are counted with what is reserved, so twice the memory leaves room for any layout.
    capacity_ = static_cast<int64_t>(bytes) * 2 / step * step;
    check(api().virtualMemReserve(driver().context, nullptr, static_cast<size_t>(capacity_),
                                  &address_),
          "zeVirtualMemReserve");
    std::lock_guard lock(Ranges::all().mutex);
    Ranges::all().held.emplace_back(base(), base() + capacity_);
  }
  ~DeviceMemory() override {
    {
      std::lock_guard lock(Ranges::all().mutex);
      std::erase(Ranges::all().held,
                 std::pair<const std::byte*, const std::byte*>(base(), base() + capacity_));
    }
    for (const Part& part : parts_) {
      api().virtualMemUnmap(driver().context, part.address, part.bytes);
      api().physicalMemDestroy(driver().context, part.memory);
    }
    api().virtualMemFree(driver().context, address_, static_cast<size_t>(capacity_));
  }

  std::byte* base() const override { return static_cast<std::byte*>(address_); }
  int64_t capacity() const override { return capacity_; }
  bool grow(int64_t from, int64_t to) override {
    Part part{base() + from, static_cast<size_t>(to - from), nullptr};
    ze_physical_mem_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC,
                                     .size = part.bytes};
    if (api().physicalMemCreate(driver().context, device_, &wanted, &part.memory) !=
        ZE_RESULT_SUCCESS)
      return false;
    if (api().virtualMemMap(driver().context, part.address, part.bytes, part.memory, 0,
                            ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE) != ZE_RESULT_SUCCESS) {
      api().physicalMemDestroy(driver().context, part.memory);
      return false;
    }
    parts_.push_back(part);
    return true;
  }

 private:
  struct Part {
    void* address;
    size_t bytes;
    ze_physical_mem_handle_t memory;
  };
  static constexpr int64_t step = Arena::grow_bytes;

  const ze_device_handle_t device_;
  void* address_ = nullptr;
  int64_t capacity_ = 0;
  std::vector<Part> parts_;
};

}  // namespace

bool on_device(const void* address) {
  const auto* place = static_cast<const std::byte*>(address);
  std::lock_guard lock(Ranges::all().mutex);
  for (const auto& [begin, end] : Ranges::all().held)
    if (place >= begin && place < end) return true;
  return false;
}

// Level Zero has no pinned memory that grows in place: Space::pinned is the process's own, and what
// moves between it and a device passes the stream's staging memory.
std::unique_ptr<ArenaMemory> make_memory(int index, Space space) {
  if (space == Space::pinned) return host_memory();
  return std::make_unique<DeviceMemory>(index);
}

}  // namespace zg::hpu
