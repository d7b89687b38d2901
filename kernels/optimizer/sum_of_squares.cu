#include "zerograd/kernels/cuda/tile.cuh"
#include "zerograd/kernels/optimizer/optimizer.h"

namespace zg::cuda {
namespace {

// The exact sum of squares: kernels/README.md, "Sum of squares". A thread adds the squares of a
// granule of 16 elements in f64 and adds that sum, as an integer of 40 limbs, to the few limbs that
// it keeps in registers. A block adds the limbs of its threads in shared memory, without atomics,
// because those of 64 bits are loops over compare and swap there. Memory bound: reads x once.
// One launch sums many arrays, each to its own result; a block reads one of them.
constexpr int threads = 256, granule = SumOfSquares::granule, limbs = SumOfSquares::limb_count;
// So many that the sums of a block, which are added by atomics, cost little.
constexpr int64_t granules_of_block = 16 * threads;
using Limb = unsigned long long;  // the type that atomicAdd takes; wraps as int64 does

struct Piece {
  const void* x;
  Limb *out, *out_non_finite;
  int64_t granules;
  uint32_t first_block;  // first block of the launch that reads this piece
};

/// The arguments of a launch, passed by value; they fit 4 KiB.
struct Launch {
  static constexpr int max_pieces = 102;
  Piece pieces[max_pieces];
  int count;
};
static_assert(sizeof(Launch) <= 4096);

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

/// Whether V elements are loaded at once is decided by the alignment of all arrays. Integers give
/// the same sums in any order.
template <class T, int V>
__global__ void __launch_bounds__(threads) squares(const __grid_constant__ Launch a) {
  const int piece = piece_of_block(a.pieces, a.count);
  const T* const x = static_cast<const T*>(a.pieces[piece].x);
  Limb* const out = a.pieces[piece].out;
  ThreadLimbs sum;
  Limb non_finite = 0;
  const int64_t begin_of_block =
      int64_t{blockIdx.x - a.pieces[piece].first_block} * granules_of_block;
  const int64_t end_of_block = begin_of_block + granules_of_block;
  const int64_t granules =
      end_of_block < a.pieces[piece].granules ? end_of_block : a.pieces[piece].granules;
  for (int64_t g = begin_of_block + threadIdx.x; g < granules; g += threads) {
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
  if (total) atomicAdd(limb == limbs ? a.pieces[piece].out_non_finite : out + limb, total);
}

/// One block reads all counts; its first thread computes the factor.
__global__ void __launch_bounds__(threads)
    scale_gradients(const int64_t* sum, const int64_t* non_finite, int64_t count, float* scale,
                    Clipping clipping, const Fault* fault) {
  __shared__ int bad;
  if (threadIdx.x == 0) bad = fault->found != 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < count; i += threads)
    if (non_finite[i] != 0) bad = 1;
  __syncthreads();
  if (threadIdx.x != 0) return;
  const double norm = std::sqrt(value_of_limbs(sum)) / clipping.divisor();
  *scale = bad ? __uint_as_float(0x7fc00000u) : clipping.factor(norm);
}

}  // namespace

void gradient_scale(const GradientScale& a, Workspace, Stream& stream) {
  launch({"gradient_scale", "scale_gradients", operand_bytes(a), a.non_finite.numel()},
         scale_gradients, {dim3(1), dim3(threads)}, stream, a.limbs.data<int64_t>(),
         a.non_finite.data<int64_t>(), a.non_finite.numel(), a.scale.data<float>(), a.clipping,
         fault_place(stream));
}

void sum_of_squares(const SumOfSquares& a, Workspace, Stream& stream) {
  if (a.parts.empty()) return;
  visit_floating(a.parts[0].x.dtype(), [&]<class T>(T) {
    Launch next{.count = 0};
    uint32_t blocks = 0;
    int64_t bytes = 0, elements = 0;
    bool vectors = true;
    const auto flush = [&] {
      launch({"sum_of_squares", "squares", bytes, elements},
             vectors ? squares<T, vector_width<T>> : squares<T, 1>, {dim3(blocks), dim3(threads)},
             stream, next);
      next.count = 0;
      blocks = 0;
      bytes = elements = 0;
      vectors = true;
    };
    for (const SumOfSquares::Part& part : a.parts) {
      const T* x = part.x.data<T>();
      const int64_t granules = part.x.numel() / granule;
      if (granules == 0) continue;
      next.pieces[next.count++] = {
          .x = x,
          .out = reinterpret_cast<Limb*>(part.limbs.data<int64_t>()),
          .out_non_finite = reinterpret_cast<Limb*>(part.non_finite.data<int64_t>()),
          .granules = granules,
          .first_block = blocks};
      blocks += blocks_for(granules, granules_of_block).x;
      bytes += part.x.bytes() + 2 * bytes_of({&part.limbs, &part.non_finite});
      elements += part.x.numel();
      vectors = vectors && takes_vectors(x, granule);
      if (next.count == Launch::max_pieces) flush();
    }
    flush();
  });
}

}  // namespace zg::cuda
