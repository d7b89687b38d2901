#include "zerograd/kernels/cuda/tile.cuh"
#include "zerograd/kernels/optimizer/optimizer.h"

namespace zg::cuda {
namespace {

constexpr int threads = 256, granule = SumOfSquares::granule, limbs = SumOfSquares::limb_count;
constexpr int64_t most_blocks = 528;  // four for each multiprocessor of an H200
using Limb = unsigned long long;      // the type that atomicAdd takes; wraps as int64 does

/// Adds a finite value >= 0 exactly, as zg::cpu does: 53 bits at any place touch three limbs.
__device__ inline void add(Limb* total, double value) {
  constexpr int bits = SumOfSquares::limb_bits;
  constexpr Limb mask = (Limb{1} << bits) - 1;
  if (value >= 0x1p520) value = 0x1.fffffffffffffp519;
  const auto u = static_cast<Limb>(__double_as_longlong(value));
  Limb mantissa = (u & ((Limb{1} << 52) - 1)) | Limb{1} << 52;
  int place = static_cast<int>(u >> 52) - 1075 - SumOfSquares::lowest_exponent;
  if (place < 0) {
    if (place <= -53) return;
    mantissa >>= -place;
    place = 0;
  }
  Limb* const limb = total + place / bits;
  const int shift = place % bits;
  atomicAdd(limb, (mantissa << shift) & mask);
  atomicAdd(limb + 1, (mantissa >> (bits - shift)) & mask);
  atomicAdd(limb + 2, mantissa >> (2 * bits - shift));
}

/// s[0] = the sum: what lies `distance` apart first, then half that. Recursive, so that every index
/// is a constant and s stays in registers.
template <int distance>
__device__ inline void fold_halves(double (&s)[granule]) {
#pragma unroll
  for (int i = 0; i < distance; ++i) s[i] += s[i + distance];
  if constexpr (distance > 1) fold_halves<distance / 2>(s);
}

template <class T>
__device__ inline bool is_finite(T x) {
  const float wide = to_float(x);
  return wide - wide == 0.0f;
}

/// Integers add up the same in any order, so atomics keep the bits.
template <class T>
__global__ void __launch_bounds__(threads)
    squares(const T* x, int64_t granules, Limb* out, Limb* out_non_finite) {
  __shared__ Limb total[limbs + 1];
  if (threadIdx.x <= limbs) total[threadIdx.x] = 0;
  __syncthreads();
  for (int64_t g = int64_t{blockIdx.x} * threads + threadIdx.x; g < granules;
       g += int64_t{gridDim.x} * threads) {
    const T* const part = x + g * granule;
    double s[granule];
    Limb non_finite = 0;
#pragma unroll
    for (int i = 0; i < granule; ++i) {
      const auto value = static_cast<double>(to_float(part[i]));
      s[i] = value * value;
      if (!is_finite(part[i])) ++non_finite;
    }
    fold_halves<granule / 2>(s);
    if (non_finite)
      atomicAdd(&total[limbs], non_finite);
    else
      add(total, s[0]);
  }
  __syncthreads();
  if (threadIdx.x < limbs && total[threadIdx.x]) atomicAdd(out + threadIdx.x, total[threadIdx.x]);
  if (threadIdx.x == limbs && total[limbs]) atomicAdd(out_non_finite, total[limbs]);
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
