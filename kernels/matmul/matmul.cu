#include "zerograd/kernels/matmul/matmul.cuh"

#include "zerograd/kernels/reduce/reduce.h"

// matmul for CUDA: cuBLASLt if it accepts the product (matmul_cublaslt.cu), else matmul_mma.cu for
// bf16 and f16, else the kernel in this file: f32 on the ordinary cores, bound by their arithmetic.
// A block of 256 threads computes one 64 x 64 tile of c, each thread 16 elements of it. It sums
// along K in order, 16 elements at a time, so the bits depend only on the operands.
namespace zg::cuda {
namespace {

constexpr int tile = 64, depth = 16;  // rows and columns of c in a tile; K elements in a step
constexpr int per_thread = 4;         // rows and columns of c per thread
constexpr int side = tile / per_thread, threads = side * side;

/// Copies [tile, depth] of an operand to shared memory, as panel[k][i]; elements beyond its edges
/// are 0. Neighbouring threads read neighbouring addresses.
__device__ inline void load_panel(float (&panel)[depth][tile + 1], const Operand& from,
                                  int64_t item, int64_t first, int64_t extent, int64_t k,
                                  int64_t K) {
  const float* const data = static_cast<const float*>(from.data) + item * from.item_stride;
#pragma unroll
  for (int step = 0; step < tile * depth / threads; ++step) {
    const int at = step * threads + static_cast<int>(threadIdx.x);
    const int i = from.k_strided ? at % tile : at / depth;
    const int j = from.k_strided ? at / tile : at % depth;
    const bool inside = first + i < extent && k + j < K;
    panel[j][i] = inside ? data[(first + i) * from.along_rows() + (k + j) * from.along_k()] : 0.0f;
  }
}

__global__ void __launch_bounds__(threads) multiply(Product p) {
  __shared__ float memory[tile * (tile + 1)];
  static_assert(2 * depth <= tile);
  auto& a_panel = reinterpret_cast<float(&)[depth][tile + 1]>(memory[0]);
  auto& b_panel = reinterpret_cast<float(&)[depth][tile + 1]>(memory[depth * (tile + 1)]);
  auto& c_panel = reinterpret_cast<float(&)[tile][tile + 1]>(memory[0]);
  const int64_t row = int64_t{blockIdx.y} * tile, column = int64_t{blockIdx.x} * tile;
  const int y = static_cast<int>(threadIdx.x) / side, x = static_cast<int>(threadIdx.x) % side;
  for (int64_t item = blockIdx.z; item < p.batch; item += gridDim.z) {
    float sums[per_thread][per_thread] = {};
    for (int64_t k = 0; k < p.K; k += depth) {
      load_panel(a_panel, p.a, item, row, p.M, k, p.K);
      load_panel(b_panel, p.b, item, column, p.N, k, p.K);
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
    // The tile passes through shared memory, so that a warp writes consecutive elements of c.
#pragma unroll
    for (int i = 0; i < per_thread; ++i)
#pragma unroll
      for (int j = 0; j < per_thread; ++j) c_panel[y + i * side][x + j * side] = sums[i][j];
    __syncthreads();
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x); at < tile * tile; at += threads) {
      const int64_t m = row + at / tile, n = column + at % tile;
      if (m < p.M && n < p.N) finish<float>(p, c_panel[at / tile][at % tile], item, m, n);
    }
    __syncthreads();
  }
}

}  // namespace

void matmul(const Matmul& m, Workspace workspace, Stream& stream) {
  const bool is_empty = m.M == 0 || m.N == 0;
  if (!is_empty && cublaslt_matmul(m, workspace, stream)) return;
  if (m.row_sums) {
    kernels::reduce[Device::Type::cuda].function(reduce_rows(m), workspace, stream);
    Matmul product = m;
    product.row_sums = {};
    return matmul(product, workspace, stream);
  }
  if (is_empty) return;
  const Product product{.a = {m.a.raw(), m.stride_a,
                              m.lda           ? m.lda
                              : m.transpose_a ? m.M
                                              : m.K,
                              m.transpose_a},
                        .b = {m.b.raw(), m.stride_b,
                              m.ldb           ? m.ldb
                              : m.transpose_b ? m.K
                                              : m.N,
                              !m.transpose_b},
                        .c = m.c.raw(),
                        .pre_activation = m.pre_activation.raw(),
                        .bias = m.bias.raw(),
                        .M = m.M,
                        .N = m.N,
                        .K = m.K,
                        .ldc = m.ldc ? m.ldc : m.N,
                        .stride_c = m.stride_c,
                        .batch = m.batch,
                        .accumulate = m.accumulate,
                        .c_is_f32 = m.c.dtype() == DType::f32,
                        .activation = m.activation};
  if (m.a.dtype() == DType::f32)
    launch(matmul_work(m, "multiply"), multiply, {blocks_of(product, tile), dim3(threads)}, stream,
           product);
  else
    mma_matmul(m.a.dtype(), product, matmul_work(m, "mma_multiply"), stream);
}

}  // namespace zg::cuda
