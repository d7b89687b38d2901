#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "zerograd/runtime/device.h"

namespace zg {

/// Where bytes are stored. Offload moves bytes from a space to a later one. device: the device's
/// own memory; pinned: host memory that the device can access directly; host: other host memory;
/// file: a file on a disk (SwapOptions).
enum class Space : uint8_t { device, pinned, host, file };
inline constexpr int space_count = 4;
/// The space of host memory that the device's kernels and copies can access: pinned on an
/// accelerator, host on the CPU.
ZG_API Space host_space(const Device& device);

/// The use of allocated bytes. Every memory table lists bytes by purpose.
enum class Purpose : uint8_t { parameter, gradient, optimizer, activation, workspace, comm };
inline constexpr int purpose_count = 6;

ZG_API const char* name_of(Space space);
ZG_API const char* name_of(Purpose purpose);

/// Sizes are rounded up to a multiple of this before they are counted.
inline constexpr int64_t arena_granule = 256;
inline constexpr int64_t file_granule = 4096;  ///< the same in Space::file: a block of the disk
constexpr int64_t arena_bytes(int64_t bytes, Space space = Space::device) {
  const int64_t granule = space == Space::file ? file_granule : arena_granule;
  return bytes <= 0 ? granule : (bytes + granule - 1) / granule * granule;
}

using BytesByPurpose = std::array<int64_t, purpose_count>;

/// Bytes read from and written to Space::file, in whole blocks of 4096.
struct SwapCount {
  int64_t read = 0, written = 0;
  bool operator==(const SwapCount&) const = default;
};

/// An allocation that was refused because it exceeds a limit (DeviceOptions).
struct RefusedAllocation {
  int64_t bytes = 0;
  Space space = Space::device;
  Purpose purpose = Purpose::activation;
  std::string phase;
  std::string name;  ///< of the innermost NameScope, "block.3 moments"; may be empty
  std::string message;
  bool operator==(const RefusedAllocation&) const = default;
};

/// Owns bytes. All tensor memory of the library is allocated here and so is always counted: under
/// the device's current Purpose (PurposeScope), until the buffer is freed. Buffers start on a
/// 256-byte boundary; their content is undefined.
class ZG_API Buffer {
 public:
  /// Throws OutOfMemory if the limit of the space would be exceeded; the message has a table of the
  /// memory in use.
  static std::shared_ptr<Buffer> allocate(const Device& device, int64_t bytes,
                                          Space space = Space::device);
  /// Memory of another program, which `owner` keeps alive. It is not counted and not limited.
  static std::shared_ptr<Buffer> share(const Device& device, std::byte* data, int64_t bytes,
                                       Space space, std::shared_ptr<void> owner);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  /// Null in Space::file and on a meta device; with DeviceOptions::count_launches a meta device has
  /// addresses, at which there is no memory.
  std::byte* data() const { return data_; }
  int64_t file_offset() const { return offset_; }  ///< Space::file only: offset of the first byte
  int64_t bytes() const { return bytes_; }         ///< the requested size, before rounding
  Space space() const { return space_; }
  Purpose purpose() const { return purpose_; }
  const Device& device() const { return device_; }

  /// The number of writes by kernels, copy() and fill_zero() so far. Writes through data() are not
  /// counted. A tape compares it in backward, and throws if a tensor that it saved was changed.
  uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  void note_write() { version_.fetch_add(1, std::memory_order_relaxed); }
  /// True: Tape::gradient() returned it. No derivative of it is recorded.
  bool is_derivative() const { return is_derivative_; }
  void note_derivative() { is_derivative_ = true; }

 private:
  Buffer(const Device& device, int64_t bytes, Space space);
  Buffer(const Device& device, std::byte* data, int64_t bytes, Space space,
         std::shared_ptr<void> owner);
  Device device_;
  int64_t bytes_ = 0, offset_ = 0;
  std::byte* data_ = nullptr;
  Space space_;
  Purpose purpose_;
  std::shared_ptr<void> owner_;  // keeps the memory of another program alive
  std::atomic<uint32_t> version_ = 0;
  bool is_derivative_ = false;
};

/// RAII: allocations on the device belong to `purpose` until scope exit. Scopes nest.
class ZG_API PurposeScope {
 public:
  PurposeScope(const Device& device, Purpose purpose);
  ~PurposeScope();
  PurposeScope(const PurposeScope&) = delete;
  PurposeScope& operator=(const PurposeScope&) = delete;

 private:
  Device device_;
  Purpose before_;
};

/// RAII: names a phase of the program in memory tables: "forward", "backward", "step". Scopes nest.
class ZG_API PhaseScope {
 public:
  PhaseScope(const Device& device, std::string_view phase);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Device device_;
  std::string before_;
};

/// RAII: names the allocations on the device until scope exit, for example "block.3 moments". The
/// error of a refused allocation shows the name. Scopes nest; the innermost name is used.
class ZG_API NameScope {
 public:
  NameScope(const Device& device, std::string name);
  ~NameScope();
  NameScope(const NameScope&) = delete;
  NameScope& operator=(const NameScope&) = delete;

 private:
  Device device_;
  std::string before_;
};

/// Memory accounting of one device. Bytes are rounded up to arena_granule and counted in program
/// order, on the thread that uses the device. So the numbers never depend on timing.
class ZG_API MemoryTracker {
 public:
  struct Row {
    std::string phase;
    Space space;
    BytesByPurpose live;  ///< when the phase's peak was reached
    int64_t peak;         ///< the most that was live during the phase
    int64_t reserved;     ///< the most that was reserved during the phase
    bool operator==(const Row&) const = default;
  };

  virtual ~MemoryTracker() = default;
  virtual int64_t live(Space space = Space::device) const = 0;
  virtual BytesByPurpose live_by_purpose(Space space = Space::device) const = 0;
  virtual int64_t peak(Space space = Space::device) const = 0;  ///< since the last reset_peaks()
  /// Memory that must be reserved for the live bytes: from the start of the arena to its highest
  /// live byte, including free blocks between live ones, rounded up to a multiple of 2 MiB. It
  /// decreases when the highest block is freed.
  virtual int64_t reserved(Space space = Space::device) const = 0;
  /// The most that was reserved since the last reset_peaks(), and the phase that first reached it.
  virtual int64_t peak_reserved(Space space = Space::device) const = 0;
  virtual std::string peak_phase(Space space = Space::device) const = 0;
  virtual std::vector<Row> rows() const = 0;  ///< a row per phase and space, in order of first use
  virtual void reset_peaks() = 0;             ///< removes the rows; peaks restart at the live bytes
  /// The same rows since the device was made; reset_peaks() does not change them.
  virtual std::vector<Row> lifetime_rows() const = 0;
  virtual int64_t lifetime_peak(Space space = Space::device) const = 0;
  virtual int64_t lifetime_reserved(Space space = Space::device) const = 0;
  virtual int64_t limit(Space space = Space::device) const = 0;  ///< 0 for none
  virtual std::string phase() const = 0;
  virtual std::string name() const = 0;  ///< of the innermost NameScope
  void print(std::ostream& out) const;   ///< Markdown, MiB: phase, space, purposes, peak, reserved
};

}  // namespace zg
