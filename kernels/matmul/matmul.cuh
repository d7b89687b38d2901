#pragma once

#include "zerograd/kernels/elementwise/gelu.cuh"
#include "zerograd/kernels/matmul/matmul.h"

// Shared by the matmul kernels of this project.
namespace zg::cuda {

/// One operand, a by its rows or b by its columns: element (i, k) of item n lies at n * stride +
/// i * distance + k, or, `across`, at n * stride + k * distance + i.
struct Operand {
  const void* data;
  int64_t stride, distance;
  bool across;
  __host__ __device__ int64_t along_rows() const { return across ? 1 : distance; }
  __host__ __device__ int64_t along_k() const { return across ? distance : 1; }
};

struct Product {
  Operand a, b;
  void *c, *pre_activation;
  const void* bias;
  int64_t M, N, K, ldc, stride_c, batch;
  bool accumulate;
  bool wide;  ///< c is f32
  Activation activation;
};

template <class C>
__device__ inline void keep(const Product& p, float sum, int64_t at) {
  C* const place = static_cast<C*>(p.c) + at;
  if (p.accumulate) sum += to_float(*place);
  // The activation reads the sum as it is kept.
  const C kept = from_float<C>(sum);
  if (p.pre_activation) static_cast<C*>(p.pre_activation)[at] = kept;
  switch (p.activation) {
    case Activation::none:
      *place = kept;
      return;
    case Activation::gelu_tanh:
      *place = from_float<C>(gelu<Activation::gelu_tanh>(to_float(kept)));
      return;
    case Activation::gelu_erf:
      *place = from_float<C>(gelu<Activation::gelu_erf>(to_float(kept)));
      return;
  }
}

/// Adds the bias to a sum, applies the activation and stores the result at (row, column) of an
/// item's c; T is a's type.
template <class T>
__device__ inline void finish(const Product& p, float sum, int64_t item, int64_t row,
                              int64_t column) {
  if (p.bias) sum += to_float(static_cast<const T*>(p.bias)[column]);
  const int64_t at = item * p.stride_c + row * p.ldc + column;
  if (p.wide)
    keep<float>(p, sum, at);
  else
    keep<T>(p, sum, at);
}

/// A block a tile of c, and of batches as many as a grid's z takes at a time.
inline dim3 blocks_of(const Product& p, int tile) {
  constexpr int64_t most_batches = 65535;
  return dim3(blocks_for(p.N, tile).x, blocks_for(p.M, tile).x,
              static_cast<unsigned>(p.batch < most_batches ? p.batch : most_batches));
}

/// By the tensor cores: a of bf16 or f16.
void mma_matmul(DType dtype, const Product&, Stream&);

}  // namespace zg::cuda
