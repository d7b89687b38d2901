#pragma once

#include "zerograd/runtime/comm.h"

namespace zg {

/// Memory of an accelerator where pieces of peers lie on their way, a slot for each rank; internal.
/// It is taken whatever moves them, and for plans, so that a plan holds for every transport. It
/// grows as the calls ask, on the rank's own thread, and stays until the communicator ends.
class CommWindow {
 public:
  /// What a collective of `size` ranks over `count` elements of each shard asks for.
  static int64_t bytes_for(Collective op, const Tensor& full, int64_t count, int size);

  bool covers(int64_t bytes) const { return bytes == 0 || (tensor_ && bytes <= tensor_.bytes()); }
  /// Nobody uses it any more.
  void grow(const Device& device, int64_t bytes);
  const Tensor& tensor() const { return tensor_; }  ///< u8; absent where none was asked for

 private:
  Tensor tensor_;
};

}  // namespace zg
