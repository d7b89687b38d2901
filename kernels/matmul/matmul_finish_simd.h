#pragma once

#include "zerograd/kernels/elementwise/gelu_simd.h"
#include "zerograd/kernels/matmul/matmul_table.h"

// The epilogue: writes the sums of a tile to c while they are in the L1 cache.
namespace zg::cpu {
namespace {

/// The position of a tile within its block of c.
struct TileRange {
  int64_t row, column, rows, columns;
};

/// Applies the activation to the sum rounded to Out, which is the value that pre_activation stores.
template <Activation activation, class Out>
[[gnu::always_inline]] inline Vec activate(Vec sum) {
  if constexpr (activation == Activation::gelu_tanh) return gelu_tanh(rounded<Out>(sum));
  if constexpr (activation == Activation::gelu_erf) return gelu_erf(rounded<Out>(sum));
  return sum;
}

template <Activation activation, class Bias, class Out>
void finish_rows(const Epilogue& to, const float* sums, int64_t row_stride, const TileRange& tile) {
  const Bias* bias = to.bias ? reinterpret_cast<const Bias*>(to.bias) + tile.column : nullptr;
  for (int64_t i = 0; i < tile.rows; ++i, sums += row_stride) {
    const int64_t offset = (tile.row + i) * to.c_row_stride + tile.column;
    for_vectors(
        tile.columns, [&](int64_t j, auto count) __attribute__((always_inline)) {
          Vec x = load(sums + j, count);
          if (bias) x = x + load(bias + j, count);
          if (to.pre_activation)
            store(reinterpret_cast<Out*>(to.pre_activation) + offset + j, x, count);
          store(reinterpret_cast<Out*>(to.c) + offset + j, activate<activation, Out>(x), count);
        });
  }
}

template <class Bias, class Out>
void finish_as(const Epilogue& to, const float* sums, int64_t row_stride, const TileRange& tile) {
  switch (to.activation) {
    case Activation::gelu_tanh:
      return finish_rows<Activation::gelu_tanh, Bias, Out>(to, sums, row_stride, tile);
    case Activation::gelu_erf:
      return finish_rows<Activation::gelu_erf, Bias, Out>(to, sums, row_stride, tile);
    case Activation::none:
      return finish_rows<Activation::none, Bias, Out>(to, sums, row_stride, tile);
  }
}

template <class T>
void finish_operands_of(const Epilogue& to, const float* sums, int64_t row_stride,
                        const TileRange& tile) {
  to.c_dtype == DType::f32 ? finish_as<T, float>(to, sums, row_stride, tile)
                           : finish_as<T, T>(to, sums, row_stride, tile);
}

/// The epilogue of one tile; its sums are rows `row_stride` apart.
inline void finish(const Epilogue& to, const float* sums, int64_t row_stride,
                   const TileRange& tile) {
  if (to.dtype == DType::f32)
    finish_as<float, float>(to, sums, row_stride, tile);
  else if (to.dtype == DType::bf16)
    finish_operands_of<bf16>(to, sums, row_stride, tile);
  else
    finish_operands_of<f16>(to, sums, row_stride, tile);
}

}  // namespace
}  // namespace zg::cpu
