#include "zerograd/kernels/cuda/tile.cuh"
#include "zerograd/kernels/optimizer/optimizer.h"

namespace zg::cuda {
namespace {

// The exact sum of squares: kernels/README.md, "Sum of squares". A thread adds the squares of a
// granule of 16 elements in f64 and adds that sum, as an integer of 40 limbs, to the few limbs that
// it keeps in registers. A block adds the limbs of its threads in shared memory, without atomics,
// because those of 64 bits are loops over compare and swap there. Memory bound: reads x once.
constexpr int threads = 256, granule = SumOfSquares::granule, limbs = SumOfSquares::limb_count;
constexpr int64_t most_blocks = 528;  // four for each multiprocessor of an H200
using Limb = unsigned long long;      // the type that atomicAdd takes; wraps as int64 does

/// The limbs that a thread keeps: `count` of them from `first` on. The first granule that is not 0
/// comes to lie in the middle, so later ones may be 2^26 times larger or smaller. Where one is not,
/// the thread adds what it has to the result and starts again around that granule: slow, but exact.
struct ThreadLimbs {
  static constexpr int count = 5, per_value = 3;
  int first = -count;
  Limb values[count] = {};

  /// Adds a finite value >= 0 exactly, as zg::cpu does. The 53 bits of a double touch at most three
  /// limbs of 26 bits.
  __device__ void add(double value, Limb* out) {
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
    const int limb = bit / bits, shift = bit % bits;
    if (limb < first || limb > first + count - per_value) {
      add_to(out);
      first = limb > 0 ? limb - 1 : 0;
    }
    const Limb added[per_value] = {(mantissa << shift) & mask, (mantissa >> (bits - shift)) & mask,
                                   mantissa >> (2 * bits - shift)};
    // A run-time index would put the limbs into local memory.
#pragma unroll
    for (int at = 0; at <= count - per_value; ++at)
#pragma unroll
      for (int k = 0; k < per_value; ++k) values[at + k] += limb == first + at ? added[k] : 0;
  }

  /// Adds the limbs to the result and clears them.
  __device__ void add_to(Limb* out) {
#pragma unroll
    for (int k = 0; k < count; ++k) {
      if (values[k]) atomicAdd(out + first + k, values[k]);
      values[k] = 0;
    }
  }
};

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

/// Whether V elements are loaded at once is decided by the alignment of x. Integers give the same
/// sums in any order.
template <class T, int V>
__global__ void __launch_bounds__(threads)
    squares(const T* x, int64_t granules, Limb* out, Limb* out_non_finite) {
  ThreadLimbs sum;
  Limb non_finite = 0;
  for (int64_t g = int64_t{blockIdx.x} * threads + threadIdx.x; g < granules;
       g += int64_t{gridDim.x} * threads) {
    double s[granule];
    Limb non_finite_here = 0;
#pragma unroll
    for (int begin = 0; begin < granule; begin += V) {
      const auto values = load<V>(x + g * granule + begin);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const auto value = static_cast<double>(to_float(values.v[k]));
        s[begin + k] = value * value;
        if (!is_finite(values.v[k])) ++non_finite_here;
      }
    }
    tree_sum<granule / 2>(s);
    if (non_finite_here)
      non_finite += non_finite_here;
    else
      sum.add(s[0], out);
  }

  __shared__ Limb block_limbs[threads][ThreadLimbs::count];
  __shared__ Limb block_non_finite[threads];
  __shared__ int block_first[threads];
  for (int k = 0; k < ThreadLimbs::count; ++k) block_limbs[threadIdx.x][k] = sum.values[k];
  block_non_finite[threadIdx.x] = non_finite;
  block_first[threadIdx.x] = sum.first;
  __syncthreads();
  // Four groups of 64 threads read 64 threads each; thread i of a group sums limb i.
  constexpr int group = 64;
  const int limb = static_cast<int>(threadIdx.x) % group;
  const int begin = static_cast<int>(threadIdx.x) - limb;
  Limb total = 0;
  for (int thread = begin; thread < begin + group; ++thread) {
    const int k = limb - block_first[thread];
    if (limb == limbs)
      total += block_non_finite[thread];
    else if (limb < limbs && k >= 0 && k < ThreadLimbs::count)
      total += block_limbs[thread][k];
  }
  if (total) atomicAdd(limb == limbs ? out_non_finite : out + limb, total);
}

}  // namespace

void sum_of_squares(const SumOfSquares& a, Workspace, Stream& stream) {
  const int64_t granules = a.x.numel() / granule;
  visit_floating(a.x.dtype(), [&]<class T>(T) {
    const T* x = a.x.data<T>();
    launch({"sum_of_squares", "squares", a.x.bytes() + 2 * bytes_of({&a.limbs, &a.non_finite}),
            a.x.numel()},
           takes_vectors(x, granule) ? squares<T, vector_width<T>> : squares<T, 1>,
           {blocks_for(granules, threads, most_blocks), dim3(threads)}, stream, x, granules,
           reinterpret_cast<Limb*>(a.limbs.data<int64_t>()),
           reinterpret_cast<Limb*>(a.non_finite.data<int64_t>()));
  });
}

}  // namespace zg::cuda
