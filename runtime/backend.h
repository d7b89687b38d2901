#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/memory.h"

namespace zg {

class StreamMark;
class Transport;

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

/// A rank sends this to its peers before they choose a library for accelerators (NCCL). Plain data,
/// so that it can be sent as bytes.
struct TransportEndpoint {
  char device[128] = {};   ///< host and accelerator, which must be different on every rank
  char id[128] = {};       ///< the group's id; only the endpoint made with `first` has it
  char absence[256] = {};  ///< the reason why this rank cannot use the library; empty: it can
};

/// The functions with which the ranks of a backend set up a communication library such as NCCL.
struct TransportFactory {
  /// The TransportEndpoint of a rank on the index-th device. `first`: this rank makes the id that
  /// the group uses.
  TransportEndpoint (*endpoint)(int index, bool first) = nullptr;
  /// Returns the reason why these ranks do not use the library, or an empty string if they do.
  /// Throws ConfigError when the environment demands the library and they cannot use it.
  std::string (*absence)(std::span<const TransportEndpoint> endpoints) = nullptr;
  std::string (*name)() = nullptr;  ///< "NCCL 2.28.9"
  std::unique_ptr<Transport> (*make)(std::span<const TransportEndpoint> endpoints, int rank,
                                     int index) = nullptr;
};

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
  /// Queues a copy to the host, which may be read after synchronize() (PendingItem). Null: the
  /// caller synchronizes the stream instead.
  std::shared_ptr<const std::vector<std::byte>> (*fetch)(Stream& stream, const void* from,
                                                         size_t bytes) = nullptr;
  /// Marks the end of the queued work. Null: the caller synchronizes the stream instead.
  std::unique_ptr<StreamMark> (*mark)(Stream& stream) = nullptr;
  /// Whether all queued work is done, or has failed. Does not wait. Null where `mark` is.
  bool (*is_idle)(Stream& stream) = nullptr;
};

/// A callback of the calling thread. It is called with true when the thread starts to wait until
/// the collectives of other ranks of the process are done, and with false afterwards. run_local()
/// sets it on the thread of each rank, so that this rank is not reported as late while it waits.
/// Null: there is no callback.
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
