#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {

inline constexpr size_t arithmetic_op_count = static_cast<size_t>(BinaryOp::equal);

/// Loops, compiled per instruction set. A result has the same bits for each.
struct ElementwiseTable {
  /// Arithmetic by op and dtype: f64, f32, bf16, f16; a stride is 0 (one value for all) or 1.
  void (*binary[arithmetic_op_count][4])(const void* a, int64_t stride_a, const void* b,
                                         int64_t stride_b, void* y, int64_t n);
  /// y = a x + b y of f32 and bf16: the first index is 1 where x is bf16, the second where y is.
  void (*axpby[2][2])(const void* x, void* y, double a, double b, int64_t n);
  /// From f32 to bf16 and, with the index 1, back.
  void (*cast[2])(const void* x, void* y, int64_t n);
};

ZG_DECLARE_LEVELS(ElementwiseTable, elementwise_table)

/// By op and dtype: f64, f32, bf16, f16. n is a multiple of 16; see for_vectors. p and q: see
/// Unary.
struct UnaryTable {
  void (*forward[unary_op_count][4])(const void* x, void* y, int64_t n, double p, double q);
  /// `v` is y where reads_result(op), else x.
  void (*backward[unary_op_count][4])(const void* v, const void* dy, void* dx, int64_t n, double p,
                                      double q);
};

/// Operands of a range of gated_backward; dgate and dup may be operands.
struct GatedGradients {
  const void *dy, *gate, *up;
  void *dgate, *dup;
};

/// GELU or a gate of n elements, a multiple of 16; dx may be dy.
struct ActivationFunctions {
  void (*forward)(const void* x, void* y, int64_t n);
  void (*backward)(const void* dy, const void* x, void* dx, int64_t n);
  void (*gated_forward)(const void* gate, const void* up, void* y, int64_t n);
  void (*gated_backward)(const GatedGradients& range, int64_t n);
};

struct ActivationTable {
  struct ByType {
    ActivationFunctions type[4];  ///< f64, f32, bf16, f16
  };
  ByType form[3];  ///< by Gate, or by Activation, whose forms have the same numbers
};

/// Calls f(addresses, n) for ranges of tensors of one dtype and size, the last `written` of which
/// are written. n is a multiple of 16: a rest is copied, so that loops over vectors need no second
/// copy of their code, with masks.
template <size_t count, class F>
void for_vectors(const Stream& stream, size_t written, const std::array<Tensor, count>& tensors,
                 const F& f) {
  constexpr int64_t lanes = 16, grain = 1 << 13;  // the slowest function takes ns for each element
  const int64_t size = size_of(tensors[0].dtype());
  using Addresses = std::array<std::byte*, count>;
  parallel_for(stream.traits().threads, tensors[0].numel(), grain, [&](int64_t begin, int64_t end) {
    const int64_t rest = (end - begin) % lanes;
    Addresses at;
    for (size_t i = 0; i < count; ++i) at[i] = tensors[i].raw() + begin * size;
    if (end - begin > rest) f(at, end - begin - rest);
    if (rest == 0) return;
    alignas(64) std::byte vectors[count][lanes * sizeof(double)] = {};
    Addresses copies;
    const auto bytes = static_cast<size_t>(rest * size);
    for (size_t i = 0; i < count; ++i) {
      at[i] = tensors[i].raw() + (end - rest) * size;
      copies[i] = vectors[i];
      if (i < count - written) std::memcpy(copies[i], at[i], bytes);
    }
    f(copies, lanes);
    for (size_t i = count - written; i < count; ++i) std::memcpy(at[i], copies[i], bytes);
  });
}

}  // namespace zg::cpu
