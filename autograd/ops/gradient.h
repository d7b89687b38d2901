#pragma once

#include "zerograd/autograd/tape.h"

namespace zg {

/// The gradient of one input while a kernel writes it. The tape takes a parameter's gradient in the
/// accumulator dtype and any other in the input's own; a kernel that writes another dtype gets
/// scratch, which accumulate() converts.
class InputGradient {
 public:
  /// For kernels that write either dtype.
  InputGradient(const BackwardPass& pass, int input);
  InputGradient(const BackwardPass& pass, int input, DType written);

  const Tensor& tensor() const { return written_; }  ///< absent when the input needs no gradient
  Tensor view(const Shape& shape) const;             ///< absent likewise
  explicit operator bool() const { return static_cast<bool>(written_); }
  void accumulate() const;  ///< hands it to the tape

 private:
  const BackwardPass& pass_;
  int input_;
  Tensor taken_, written_;
};

/// x * factor, for small tensors and seeds.
Tensor scaled(const Tensor& x, double factor, Stream& stream);

}  // namespace zg
