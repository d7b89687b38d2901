#pragma once

#include "zerograd/kernels/elementwise/elementwise.h"

namespace zg::cpu {

void unary(const Unary&, Workspace, Stream&);
void unary_backward(const UnaryBackward&, Workspace, Stream&);
void binary(const Binary&, Workspace, Stream&);
void binary_backward(const BinaryBackward&, Workspace, Stream&);
void where(const Where&, Workspace, Stream&);
void axpby(const Axpby&, Workspace, Stream&);
void cast(const Cast&, Workspace, Stream&);

/// Loops over f32 and bf16, compiled per instruction set. The first index of each array is 1 where
/// x is bf16, the second where y is. They do the same IEEE operations as the plain loops, so an
/// element has the same bits at every level.
struct ElementwiseTable {
  void (*axpby[2][2])(const void* x, void* y, float a, float b, int64_t n);
  void (*cast[2][2])(const void* x, void* y, int64_t n);
  /// add, subtract, multiply, divide; a stride is 0 (one value for all) or 1.
  void (*binary[4][2])(const void* a, int64_t stride_a, const void* b, int64_t stride_b, void* y,
                       int64_t n);
};

/// exp, tanh, sigmoid and silu of f32 and (second index 1) bf16, to a few ulp of f32.
struct UnaryTable {
  using Function = void (*)(const void* x, void* y, int64_t n);
  Function exp[2], tanh[2], sigmoid[2], silu[2];
};

}  // namespace zg::cpu
