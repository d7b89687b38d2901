#pragma once

#include <vector>

#include "zerograd/kernels/kernel.h"
#include "zerograd/runtime/memory.h"

namespace zg {

/// Kernels of an hpu cannot access pinned memory (runtime/hpu/device.cpp). Operands that are there
/// are copied to the end of the call's scratch first and, if the kernel writes them, back after it.
class StagedOperands {
 public:
  /// Bytes of scratch; 0: there is no such operand.
  static int64_t bytes_for(const std::vector<Operand>& operands);
  /// Replaces the tensors of `operands`, which are members of the caller's own arguments.
  StagedOperands(const std::vector<Operand>& operands, const Workspace& scratch, Stream& stream);
  void store() const;  ///< queues the copies back

 private:
  struct Copy {
    Tensor pinned, near;
    bool is_written;
  };
  std::vector<Copy> copies_;
  Stream& stream_;
};

}  // namespace zg
