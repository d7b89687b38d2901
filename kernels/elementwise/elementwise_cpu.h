#pragma once

#include <cstdint>

namespace zg::cpu {

/// Loops over f32 and bf16, compiled per instruction set. The first index of each array is 1 where
/// x is bf16, the second where y is. They do the same IEEE operations as the plain loops, so a
/// result has the same bits for every instruction set.
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

/// n elements of one dtype; dx may be dy.
using GeluForwardRange = void (*)(const void* x, void* y, int64_t n);
using GeluBackwardRange = void (*)(const void* dy, const void* x, void* dx, int64_t n);

struct GeluFunctions {
  GeluForwardRange forward;
  GeluBackwardRange backward;
};

/// By dtype: f64 (only in the plain table), f32, bf16, f16.
struct GeluTable {
  GeluFunctions tanh[4], erf[4];
};

/// Operands of a range of gated_backward; dgate and dup may be operands.
struct GatedGradients {
  const void *dy, *gate, *up;
  void *dgate, *dup;
};
struct GatedFunctions {
  void (*forward)(const void* gate, const void* up, void* y, int64_t n);
  void (*backward)(const GatedGradients& range, int64_t n);
};

/// By form (Gate) and dtype, as in GeluTable.
struct GatedTable {
  GatedFunctions form[3][4];
};

}  // namespace zg::cpu
