#include "kernels/matmul.h"

#include "kernels/cuda/gelu.cuh"

// A product of our own on the ordinary cores, in f32: what any shape, stride and dtype falls back
// to. A block makes one tile of c, walking K in order, so that the bits depend on nothing else.
namespace zg::cuda {
namespace {

constexpr int tile = 64, depth = 16;  // of c, and of a step along K
constexpr int per_thread = 4;         // rows and columns of c
constexpr int side = tile / per_thread, threads = side * side;
constexpr unsigned most_batches = 65535;  // along a grid's z

/// One operand: element (i, k) of item b lies at b * stride + i * row + k * column.
struct Operand {
  const void* data;
  int64_t stride, row, column;
};
struct Product {
  Operand a, b;  // b by its columns: (j, k)
  void *c, *pre_activation;
  const void* bias;
  int64_t M, N, K, ldc, stride_c, batch;
  bool accumulate;
};

/// Brings [tile, depth] of an operand to shared memory, zeros beyond its edges. Threads run along
/// whichever way lies together in memory.
template <class T>
__device__ inline void bring(float (&panel)[depth][tile + 1], const T* data, const Operand& from,
                             int64_t first, int64_t extent, int64_t k, int64_t K) {
#pragma unroll
  for (int step = 0; step < tile * depth / threads; ++step) {
    const int at = step * threads + static_cast<int>(threadIdx.x);
    const int i = from.column == 1 ? at / depth : at % tile;
    const int j = from.column == 1 ? at % depth : at / tile;
    const bool inside = first + i < extent && k + j < K;
    panel[j][i] = inside ? to_float(data[(first + i) * from.row + (k + j) * from.column]) : 0.0f;
  }
}

template <class T, class C, Activation activation>
__device__ inline void finish(const Product& p, float sum, int64_t at, int64_t column) {
  C* const place = static_cast<C*>(p.c) + at;
  if (p.bias) sum += to_float(static_cast<const T*>(p.bias)[column]);
  if (p.accumulate) sum += to_float(*place);
  // The activation reads the sum as it is kept.
  const C kept = from_float<C>(sum);
  if (p.pre_activation) static_cast<C*>(p.pre_activation)[at] = kept;
  if constexpr (activation == Activation::none)
    *place = kept;
  else
    *place = from_float<C>(gelu<activation>(to_float(kept)));
}

template <class T, class C, Activation activation>
__global__ void __launch_bounds__(threads) multiply(Product p) {
  __shared__ float memory[tile * (tile + 1)];
  static_assert(2 * depth <= tile);
  auto& a_panel = reinterpret_cast<float(&)[depth][tile + 1]>(memory[0]);
  auto& b_panel = reinterpret_cast<float(&)[depth][tile + 1]>(memory[depth * (tile + 1)]);
  auto& c_panel = reinterpret_cast<float(&)[tile][tile + 1]>(memory[0]);
  const int64_t row = int64_t{blockIdx.y} * tile, column = int64_t{blockIdx.x} * tile;
  const int y = static_cast<int>(threadIdx.x) / side, x = static_cast<int>(threadIdx.x) % side;
  for (int64_t item = blockIdx.z; item < p.batch; item += gridDim.z) {
    const T* const a = static_cast<const T*>(p.a.data) + item * p.a.stride;
    const T* const b = static_cast<const T*>(p.b.data) + item * p.b.stride;
    float sums[per_thread][per_thread] = {};
    for (int64_t k = 0; k < p.K; k += depth) {
      bring(a_panel, a, p.a, row, p.M, k, p.K);
      bring(b_panel, b, p.b, column, p.N, k, p.K);
      __syncthreads();
#pragma unroll 4
      for (int step = 0; step < depth; ++step) {
        float left[per_thread], right[per_thread];
#pragma unroll
        for (int i = 0; i < per_thread; ++i) {
          left[i] = a_panel[step][y + i * side];
          right[i] = b_panel[step][x + i * side];
        }
#pragma unroll
        for (int i = 0; i < per_thread; ++i)
#pragma unroll
          for (int j = 0; j < per_thread; ++j)
            sums[i][j] = __fmaf_rn(left[i], right[j], sums[i][j]);
      }
      __syncthreads();
    }
    // By way of shared memory, so that a warp writes a row of c.
#pragma unroll
    for (int i = 0; i < per_thread; ++i)
#pragma unroll
      for (int j = 0; j < per_thread; ++j) c_panel[y + i * side][x + j * side] = sums[i][j];
    __syncthreads();
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < tile * tile; at += threads) {
      const int64_t m = row + at / tile, n = column + at % tile;
      if (m < p.M && n < p.N)
        finish<T, C, activation>(p, c_panel[at / tile][at % tile],
                                 item * p.stride_c + m * p.ldc + n, n);
    }
    __syncthreads();
  }
}

/// Rows as they are stored, `across` when the product reads them along K.
Operand operand(const Tensor& tensor, int64_t distance, int64_t packed, int64_t stride,
                bool across) {
  const int64_t rows_apart = distance ? distance : packed;
  return {tensor.raw(), stride, across ? 1 : rows_apart, across ? rows_apart : 1};
}

template <class T, class C>
void run(Activation activation, const Product& product, dim3 blocks, Stream& stream) {
  const auto with = [&](auto kernel) {
    launch("matmul", kernel, {blocks, dim3(threads)}, stream, product);
  };
  if (activation == Activation::gelu_tanh) return with(multiply<T, C, Activation::gelu_tanh>);
  if (activation == Activation::gelu_erf) return with(multiply<T, C, Activation::gelu_erf>);
  with(multiply<T, C, Activation::none>);
}

}  // namespace

void matmul(const Matmul& m, Workspace, Stream& stream) {
  if (m.M == 0 || m.N == 0) return;
  const Product product{
      .a = operand(m.a, m.lda, m.transpose_a ? m.M : m.K, m.stride_a, m.transpose_a),
      .b = operand(m.b, m.ldb, m.transpose_b ? m.K : m.N, m.stride_b, !m.transpose_b),
      .c = m.c.raw(),
      .pre_activation = m.pre_activation.raw(),
      .bias = m.bias.raw(),
      .M = m.M,
      .N = m.N,
      .K = m.K,
      .ldc = m.ldc ? m.ldc : m.N,
      .stride_c = m.stride_c,
      .batch = m.batch,
      .accumulate = m.accumulate};
  const dim3 blocks(blocks_for(m.N, tile).x, blocks_for(m.M, tile).x,
                    static_cast<unsigned>(m.batch < most_batches ? m.batch : most_batches));
  visit_floating(m.a.dtype(), [&]<class T>(T) {
    if (m.c.dtype() == m.a.dtype())
      run<T, T>(m.activation, product, blocks, stream);
    else
      run<T, float>(m.activation, product, blocks, stream);
  });
}

}  // namespace zg::cuda
