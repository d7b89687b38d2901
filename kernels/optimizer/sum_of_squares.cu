#include "zerograd/kernels/cuda/tile.cuh"
#include "zerograd/kernels/optimizer/optimizer.h"

namespace zg::cuda {
namespace {

// The exact sum of squares: kernels/README.md, "Sum of squares". A thread adds the squares of a
// granule of 16 elements in f64 and adds that sum, as an integer of 40 limbs, to the limbs of its
// block in shared memory; the block adds its limbs to the result. Memory bound: reads x once.
constexpr int threads = 256, granule = SumOfSquares::granule, limbs = SumOfSquares::limb_count;
constexpr int64_t most_blocks = 528;  // four for each multiprocessor of an H200
using Limb = unsigned long long;      // the type that atomicAdd takes; wraps as int64 does

/// Adds a finite value >= 0 exactly to the limbs at `block_limbs`, as zg::cpu does. The 53 bits of
/// a double touch at most three limbs of 26 bits.
__device__ inline void add(Limb* block_limbs, double value) {
  constexpr int bits = SumOfSquares::limb_bits;
  constexpr Limb mask = (Limb{1} << bits) - 1;
  if (value >= 0x1p520) value = 0x1.fffffffffffffp519;
  const auto u = static_cast<Limb>(__double_as_longlong(value));
  Limb mantissa = (u & ((Limb{1} << 52) - 1)) | Limb{1} << 52;
  int bit = static_cast<int>(u >> 52) - 1075 - SumOfSquares::lowest_exponent;
  if (bit < 0) {
    if (bit <= -53) return;
    mantissa >>= -bit;
    bit = 0;
  }
  Limb* const limb = block_limbs + bit / bits;
  const int shift = bit % bits;
  atomicAdd(limb, (mantissa << shift) & mask);
  atomicAdd(limb + 1, (mantissa >> (bits - shift)) & mask);
  atomicAdd(limb + 2, mantissa >> (2 * bits - shift));
}

/// s[0] = the sum of s, added as a binary tree: first the elements `distance` apart, then half of
/// that. Recursive, so that every index is a constant and s stays in registers.
template <int distance>
__device__ inline void tree_sum(double (&s)[granule]) {
#pragma unroll
  for (int i = 0; i < distance; ++i) s[i] += s[i + distance];
  if constexpr (distance > 1) tree_sum<distance / 2>(s);
}

template <class T>
__device__ inline bool is_finite(T x) {
  const float wide = to_float(x);
  return wide - wide == 0.0f;
}

/// Atomic additions of integers give the same bits in any order.
template <class T>
__global__ void __launch_bounds__(threads)
    squares(const T* x, int64_t granules, Limb* out, Limb* out_non_finite) {
  __shared__ Limb block_limbs[limbs + 1];
  if (threadIdx.x <= limbs) block_limbs[threadIdx.x] = 0;
  __syncthreads();
  for (int64_t g = int64_t{blockIdx.x} * threads + threadIdx.x; g < granules;
       g += int64_t{gridDim.x} * threads) {
    const T* const granule_begin = x + g * granule;
    double s[granule];
    Limb non_finite = 0;
#pragma unroll
    for (int i = 0; i < granule; ++i) {
      const auto value = static_cast<double>(to_float(granule_begin[i]));
      s[i] = value * value;
      if (!is_finite(granule_begin[i])) ++non_finite;
    }
    tree_sum<granule / 2>(s);
    if (non_finite)
      atomicAdd(&block_limbs[limbs], non_finite);
    else
      add(block_limbs, s[0]);
  }
  __syncthreads();
  if (threadIdx.x < limbs && block_limbs[threadIdx.x])
    atomicAdd(out + threadIdx.x, block_limbs[threadIdx.x]);
  if (threadIdx.x == limbs && block_limbs[limbs]) atomicAdd(out_non_finite, block_limbs[limbs]);
}

}  // namespace

void sum_of_squares(const SumOfSquares& a, Workspace, Stream& stream) {
  const int64_t granules = a.x.numel() / granule;
  visit_floating(a.x.dtype(), [&]<class T>(T) {
    launch("sum_of_squares", squares<T>,
           {blocks_for(granules, threads, most_blocks), dim3(threads)}, stream,
           static_cast<const T*>(a.x.data<T>()), granules,
           reinterpret_cast<Limb*>(a.limbs.data<int64_t>()),
           reinterpret_cast<Limb*>(a.non_finite.data<int64_t>()));
  });
}

}  // namespace zg::cuda
