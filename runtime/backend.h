#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/transport.h"
#include "zerograd/runtime/memory.h"
#include "zerograd/runtime/pending.h"

namespace zg {

/// The memory of an arena: one range of addresses, to which memory is added as the arena grows.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  virtual std::byte* base() const = 0;
  virtual int64_t capacity() const = 0;
  /// Adds memory to [from, to) of the range; false when there is no more.
  virtual bool grow(int64_t from, int64_t to) = 0;
  /// The reason why grow() returned false, as the end of an error message. Empty: not known.
  virtual std::string cause() const { return {}; }
};

/// Memory of the process, on huge pages where the system has them.
std::unique_ptr<ArenaMemory> host_memory();

/// The functions of one type of accelerator; one per backend.
struct Backend {
  int (*count)() = nullptr;  ///< number of devices; null: not in this build
  /// The reason why there are no devices; empty: there are some.
  std::string (*absence)() = nullptr;
  std::string (*describe)(int index) = nullptr;
  /// See emulator_name() in device.h. Null: this backend has no test driver.
  std::string (*emulator_name)(int index) = nullptr;
  /// True if kernels and copies of one device can access the memory of another.
  bool (*reaches)(int index, int other) = nullptr;
  std::unique_ptr<Stream> (*make_stream)(DeviceState& state, const char* name) = nullptr;
  /// For Space::device and Space::pinned; other spaces use memory of the process.
  std::unique_ptr<ArenaMemory> (*memory)(int index, Space space) = nullptr;
  TransportFactory transports = {};
  /// Queues a copy to the host that may be read after synchronize() (PendingItem), and marks the
  /// end of queued work. Null: the stream waits instead.
  std::shared_ptr<const std::vector<std::byte>> (*fetch)(Stream& stream, const void* from,
                                                         size_t bytes) = nullptr;
  std::unique_ptr<StreamMark> (*mark)(Stream& stream) = nullptr;
  /// Whether all queued work is done, or has failed. Does not wait. Null where `mark` is.
  bool (*is_idle)(Stream& stream) = nullptr;
};

/// Called with true when this thread must wait until collectives of other ranks of the process are
/// done, before a driver can serve it, and with false afterwards. run_local() sets it on the thread
/// of each rank, so that a late rank is not taken for the cause. Null: nobody asks.
std::function<void(bool waits)>& on_wait_for_collectives();

namespace cuda {
const Backend& backend();
}
namespace hpu {
const Backend& backend();
}

/// The backend of Device::Type::cuda or hpu; null for the other types, which use memory of the
/// process.
const Backend* backend_of(Device::Type type);

}  // namespace zg
