#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/device.h"

namespace zg {

namespace cpu {
struct Job;
}

/// Moves the data of collectives once the ranks have met. All ranks run the same job. Only the
/// communication worker calls it.
class Transport {
 public:
  /// Returns when done() is true. Throws CommError when a rank failed or the deadline has passed.
  using Await = std::function<void(const std::function<bool()>& done)>;

  virtual ~Transport() = default;
  /// Returns when the job is done on this rank. Calls queued() once all of its work is on the
  /// stream; from then on the job's tensors may be absent. Throws DeviceError with the message of
  /// the library. After an exception the transport must not be used again; none of its work is left
  /// on the stream.
  virtual void run(const cpu::Job& job, Stream& stream, const Await& await,
                   const std::function<void()>& queued) = 0;
};

/// A rank sends this to its peers before they choose a library for accelerators (NCCL). Plain data,
/// so that it can be sent as bytes.
struct TransportEndpoint {
  char device[128] = {};   ///< host and accelerator, which must be different on every rank
  char id[128] = {};       ///< the group's id; only the endpoint made with `first` has it
  char absence[256] = {};  ///< the reason why this rank cannot use the library; empty: it can
};

/// The functions by which the ranks of a backend set up such a library.
struct TransportFactory {
  /// The TransportEndpoint of a rank on the index-th device. `first`: this rank makes the id that
  /// the group uses.
  TransportEndpoint (*endpoint)(int index, bool first) = nullptr;
  /// Why these ranks do not use the library; empty: they use it. Throws ConfigError when the
  /// environment demands the library and they cannot use it.
  std::string (*absence)(std::span<const TransportEndpoint> endpoints) = nullptr;
  std::string (*name)() = nullptr;  ///< "NCCL 2.28.9"
  std::unique_ptr<Transport> (*make)(std::span<const TransportEndpoint> endpoints, int rank,
                                     int index) = nullptr;
};

/// Accelerator memory that receives the data of peers, one slot for each rank; internal. It is
/// allocated for every transport, also in plans, so that a plan is valid for every transport. It
/// grows as collectives need it, on the rank's own thread, and is freed with the communicator.
class CommWindow {
 public:
  /// Bytes of window that a collective of `size` ranks needs; `count`: elements of each shard.
  static int64_t bytes_for(Collective op, const Tensor& full, int64_t count, int size);

  bool covers(int64_t bytes) const { return bytes == 0 || (tensor_ && bytes <= tensor_.bytes()); }
  /// Replaces the memory by `bytes` bytes. No collective may be using it.
  void grow(const Device& device, int64_t bytes);
  const Tensor& tensor() const { return tensor_; }  ///< u8; absent if no collective needed it

 private:
  Tensor tensor_;
};

}  // namespace zg
