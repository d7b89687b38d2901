#pragma once

#include <functional>

#include "zerograd/runtime/backend.h"
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
