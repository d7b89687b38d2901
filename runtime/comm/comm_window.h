#pragma once

#include "zerograd/runtime/comm/communicator.h"

namespace zg {

/// Accelerator memory that receives the data of peers, one slot for each rank; internal. It is
/// allocated for every transport and in plans too, so that a plan holds for every transport. It
/// grows as collectives need it, on the rank's own thread, and is freed with the communicator.
class CommWindow {
 public:
  /// Bytes that a collective of `size` ranks needs here; `count`: elements of each shard.
  static int64_t bytes_for(Collective op, const Tensor& full, int64_t count, int size);

  bool covers(int64_t bytes) const { return bytes == 0 || (tensor_ && bytes <= tensor_.bytes()); }
  /// Replaces the memory by `bytes` bytes. No collective may be using it.
  void grow(const Device& device, int64_t bytes);
  const Tensor& tensor() const { return tensor_; }  ///< u8; absent where none was asked for

 private:
  Tensor tensor_;
};

}  // namespace zg
