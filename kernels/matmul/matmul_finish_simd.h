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
template <class Out>
inline Vec activate(Vec sum, Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh:
      return gelu_tanh(rounded<Out>(sum));
    case Activation::gelu_erf:
      return gelu_erf(rounded<Out>(sum));
    case Activation::none:
      break;
  }
  return sum;
}

template <class Bias, class Out>
void finish_as(const Epilogue& to, const float* sums, int64_t row_stride, const TileRange& tile) {
  const Bias* bias = to.bias ? reinterpret_cast<const Bias*>(to.bias) + tile.column : nullptr;
  for (int64_t i = 0; i < tile.rows; ++i, sums += row_stride) {
    const int64_t offset = (tile.row + i) * to.c_row_stride + tile.column;
    for (int64_t j = 0; j < tile.columns; j += Vec::lanes) {
      const int64_t n = tile.columns - j;
      Vec x = load(sums + j, n);
      if (bias) x = x + load(bias + j, n);
      if (to.pre_activation) store(reinterpret_cast<Out*>(to.pre_activation) + offset + j, x, n);
      store(reinterpret_cast<Out*>(to.c) + offset + j, activate<Out>(x, to.activation), n);
    }
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
