#include "zerograd/runtime/hpu/device.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "zerograd/runtime/arena.h"
#include "zerograd/runtime/hpu/features.h"
#include "zerograd/runtime/text/format.h"

namespace zg::hpu {

// --- memory ---

namespace {

/// The address ranges of all device memory and pinned memory, with their owners.
struct Ranges {
  struct Range {
    const std::byte *begin, *end;
    int place;
  };
  std::mutex mutex;
  std::vector<Range> held;

  static Ranges& all() {
    static Ranges& ranges = *new Ranges;
    return ranges;
  }
  void add(const std::byte* begin, int64_t bytes, int place) {
    std::lock_guard lock(mutex);
    held.push_back({begin, begin + bytes, place});
  }
  void remove(const std::byte* begin) {
    std::lock_guard lock(mutex);
    std::erase_if(held, [&](const Range& range) { return range.begin == begin; });
  }
};

/// One reserved range of virtual addresses; device memory is mapped from its beginning on as the
/// arena grows, so adjacent free blocks can always merge. The driver keeps all chunks of the range
/// resident for each kernel that gets an address in it. So a chunk is large, and the device holds
/// up to one chunk more than the arena has reserved.
class DeviceMemory final : public ArenaMemory {
 public:
  explicit DeviceMemory(int index) : device_(handle_of(index)) {
    size_t page = 0;
    check(api().virtualMemQueryPageSize(driver().context, device_, step, &page),
          "zeVirtualMemQueryPageSize");
    if (page == 0 || step % page != 0)
      raise<DeviceError>("hpu: memory comes in pages of {} bytes; expected a divisor of {}", page,
                         step);
    // Free blocks count as reserved, so twice the memory of the device is enough for any layout.
    capacity_ = features_of(index).memory_bytes * 2 / step * step;
    ze_result_t reserved = api().virtualMemReserve(driver().context, nullptr,
                                                   static_cast<size_t>(capacity_), &address_);
    // The loader's validation layer rejects null, which means "any address". The address is only a
    // hint.
    if (reserved == ZE_RESULT_ERROR_INVALID_NULL_POINTER)
      reserved = api().virtualMemReserve(driver().context,
                                         reinterpret_cast<void*>(step),  // NOLINT: a hint
                                         static_cast<size_t>(capacity_), &address_);
    check(reserved, "zeVirtualMemReserve");
    Ranges::all().add(base(), capacity_, index);
  }
  ~DeviceMemory() override {
    Ranges::all().remove(base());
    for (const Part& part : parts_) {
      api().virtualMemUnmap(driver().context, part.address, part.bytes);
      api().physicalMemDestroy(driver().context, part.memory);
    }
    api().virtualMemFree(driver().context, address_, static_cast<size_t>(capacity_));
  }

  std::byte* base() const override { return static_cast<std::byte*>(address_); }
  int64_t capacity() const override { return capacity_; }
  std::string cause() const override { return cause_; }
  bool grow(int64_t, int64_t to) override {
    while (mapped_ < to) {
      const int64_t wanted = std::min(
          {(to - mapped_ + chunk - 1) / chunk * chunk, capacity_ - mapped_, largest_chunk});
      // Where a whole chunk does not fit, the exact rest may.
      if (!add_chunk(wanted) && !add_chunk(std::min(to - mapped_, largest_chunk))) return false;
    }
    return true;
  }

 private:
  /// False: there is not so much memory, and cause_ says so. Throws any other error.
  bool add_chunk(int64_t bytes) {
    Part part{base() + mapped_, static_cast<size_t>(bytes), nullptr};
    ze_physical_mem_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC,
                                     .size = part.bytes};
    if (!succeeds(api().physicalMemCreate(driver().context, device_, &wanted, &part.memory),
                  "zePhysicalMemCreate"))
      return false;
    const ze_result_t mapped =
        api().virtualMemMap(driver().context, part.address, part.bytes, part.memory, 0,
                            ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE);
    if (mapped != ZE_RESULT_SUCCESS) {
      api().physicalMemDestroy(driver().context, part.memory);
      return succeeds(mapped, "zeVirtualMemMap");
    }
    parts_.push_back(part);
    mapped_ += bytes;
    return true;
  }
  bool succeeds(ze_result_t result, const char* call) {
    if (result == ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY ||
        result == ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY)
      cause_ = fmt::format("; {}: {}", call, text_of(result));
    else
      check(result, call);
    return result == ZE_RESULT_SUCCESS;
  }

  struct Part {
    void* address;
    size_t bytes;
    ze_physical_mem_handle_t memory;
  };
  static constexpr int64_t step = Arena::grow_bytes;
  static constexpr int64_t chunk = int64_t{256} << 20;
  static constexpr int64_t largest_chunk = int64_t{4} << 30;  // larger ones need other alignments

  const ze_device_handle_t device_;
  void* address_ = nullptr;
  int64_t capacity_ = 0, mapped_ = 0;
  std::string cause_;
  std::vector<Part> parts_;
};

/// Host memory that is imported into the driver as it grows, so that copies need no staging. An
/// import has another address on the device, so kernels cannot use this memory (kernels/slots.h),
/// and a copy must not cross the end of an import.
class PinnedMemory final : public ArenaMemory {
 public:
  PinnedMemory() : memory_(host_memory()) {}
  ~PinnedMemory() override {
    for (std::byte* part : parts_) {
      Ranges::all().remove(part);
      release_memory(part);
    }
  }

  std::byte* base() const override { return memory_->base(); }
  int64_t capacity() const override { return memory_->capacity(); }
  bool grow(int64_t from, int64_t to) override {
    if (!memory_->grow(from, to)) return false;
    import_memory(base() + from, static_cast<size_t>(to - from));
    Ranges::all().add(base() + from, to - from, pinned_memory);
    parts_.push_back(base() + from);
    return true;
  }

 private:
  const std::unique_ptr<ArenaMemory> memory_;
  std::vector<std::byte*> parts_;
};

}  // namespace

Position position_of(const void* address) {
  const auto* place = static_cast<const std::byte*>(address);
  std::lock_guard lock(Ranges::all().mutex);
  for (const Ranges::Range& range : Ranges::all().held)
    if (place >= range.begin && place < range.end)
      return {range.place, static_cast<size_t>(range.end - place)};
  return {};
}

std::unique_ptr<ArenaMemory> make_memory(int index, Space space) {
  if (space == Space::pinned) return std::make_unique<PinnedMemory>();
  return std::make_unique<DeviceMemory>(index);
}

// --- devices ---

namespace {

int count_devices() { return static_cast<int>(driver().devices.size()); }

std::string absence() { return driver().absence; }

ze_device_properties_t properties_of(int index) {
  ze_device_properties_t properties = {.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES};
  check(api().deviceGetProperties(handle_of(index), &properties), "zeDeviceGetProperties");
  return properties;
}

std::string describe(int index) {
  const ze_device_properties_t properties = properties_of(index);
  const Features& features = features_of(index);
  std::string sizes;
  for (const int size : features.sub_groups)
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  const uint32_t engines =
      properties.numSlices * properties.numSubslicesPerSlice * properties.numEUsPerSubslice;
  return fmt::format(
      "{}, {} vector engines, {}, {} MiB{}", properties.name, engines,
      sizes.empty() ? "no sub-groups" : "sub-groups of " + sizes, features.memory_bytes >> 20,
      features.rounded_divide_sqrt ? ""
                                   : ", divide and square root not correctly rounded: other "
                                     "bits with host offload than without");
}

std::string emulator_name(int index) {
  const ze_device_properties_t properties = properties_of(index);
  return properties.type == ZE_DEVICE_TYPE_CPU ? properties.name : "";
}

}  // namespace

// Also where zeDeviceCanAccessPeer says yes, a command reaches only the chunk that its address lies
// in, and tensors cross chunks.
bool reaches(int index, int other) { return index == other; }

const Backend& backend() {
  static constexpr Backend present{.count = count_devices,
                                   .absence = absence,
                                   .describe = describe,
                                   .emulator_name = emulator_name,
                                   .reaches = reaches,
                                   .make_stream = make_stream,
                                   .memory = make_memory,
                                   .fetch = fetch,
                                   .mark = mark,
                                   .is_idle = is_idle};
  return present;
}

}  // namespace zg::hpu
