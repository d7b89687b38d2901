#pragma once

#include <array>

#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/kernel.h"

namespace zg {

struct Reduce;

/// A division of K into groups, whose products are summed alone. The sums of the groups meet in a
/// balanced binary tree of aligned neighbours, so a sum has the same bits if several ranks have
/// consecutive groups and go on with the tree. K consists of up to three blocks, one after another.
/// Group g has the elements [g extent, (g + 1) extent) of each block; the last groups may have
/// fewer, or none.
struct ReductionGroups {
  struct Block {
    int64_t size = 0, extent = 0;
  };
  int64_t count = 0;  ///< a power of two; 0: K is summed as a whole
  std::array<Block, 3> blocks = {};
};

/// On the CPU products of so few rows, whose a is not transposed and whose b is, are sums of
/// several parts: they have other bits than the same product with b stored [K, N].
inline constexpr int64_t max_rows_of_dots = 8;

/// c = activation(op(a) op(b) + bias), batched, with leading dimensions. Matrices are row-major
/// inside their tensor, whose own shape does not matter: extents and strides are given here, in
/// elements, and checked against the tensor's size. Sums are accumulated in f32 (f64 for f64) and
/// rounded once, to c's dtype; the activation reads the rounded sums. The division into tiles
/// depends only on shapes, so the bits are the same for any thread count. With the bf16
/// instructions of the processor (avx512_bf16, amx_bf16) bf16 subnormals count as 0.
struct Matmul {
  Tensor a;  ///< op(a) [M, K]: stored [M, K], or [K, M] when transpose_a; f64 | f32 | bf16 | f16
  Tensor b;  ///< op(b) [K, N]: stored [K, N], or [N, K] when transpose_b; same dtype as a
  Tensor c;  ///< [M, N] out; a's dtype or its accumulator dtype (f32 for bf16 and f16)
  int64_t M = 0, N = 0, K = 0;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;  ///< c += instead of c =; c must have the accumulator dtype; without
                            ///< bias and activation
  Tensor bias;              ///< [N] or absent, a's dtype
  Activation activation = Activation::none;
  Tensor pre_activation;  ///< out or absent, like c: the argument of an activation; applying the
                          ///< activation to it gives the bits of c; absent without one
  /// [M] out or absent: the sum of each row of op(a), a's or the accumulator dtype. So one product
  /// computes the gradients of a weight and of its bias. Only for a batch of 1 without
  /// accumulate, whose a is transposed and contiguous. On CUDA cuBLASLt may compute the sums with
  /// the product, in f32, if they have c's dtype; otherwise they have the bits of reduce over axis
  /// 0 of the stored a.
  Tensor row_sums;
  /// Only for a batch of 1 without accumulate. Accelerators ignore the groups.
  ReductionGroups groups;
  int64_t lda = 0, ldb = 0, ldc = 0;  ///< elements between stored rows; 0: rows follow each other
  int64_t batch = 1;                  ///< independent products
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;  ///< between them; stride_a, stride_b 0: shared
};
ZG_API void validate(const Matmul&);
inline std::vector<Operand> operands(const Matmul& a) {
  return {{"a", a.a},
          {"b", a.b},
          {"bias", a.bias},
          {"c", a.c, Operand::out},
          {"pre_activation", a.pre_activation, Operand::out},
          {"row_sums", a.row_sums, Operand::out}};
}
/// Counts 2 M N K operations and the bytes of the tensors; c counts twice if `accumulate`.
ZG_API void adjust_count(OpCount&, const Matmul&);
ZG_API std::string sizes(const Matmul&);   ///< "M 64, N 48, K 48, b transposed"
ZG_API Reduce reduce_rows(const Matmul&);  ///< the call that computes only row_sums

namespace kernels {
extern ZG_API Kernel<Matmul> matmul;
}

}  // namespace zg
