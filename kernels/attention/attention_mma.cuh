#pragma once

#include "zerograd/kernels/attention/attention.cuh"
#include "zerograd/kernels/cuda/mma.cuh"

// Building blocks of attention on the tensor cores: asynchronous loads of rows, products of tiles,
// the mask and the online softmax. attention_mma_forward.cu, attention_mma_backward.cu and
// attention_hopper.cu put them together.
//
// A warp computes the results of `tiles` * 16 rows, its resident rows: queries for out and dq, keys
// for dk and dv. They are loaded once. The block iterates over the rows of the other kind, the
// streamed rows, some at a time. Shared memory has two buffers for them: the warps compute with one
// while the next rows are loaded into the other.
// Scores, and the weights computed from them, never leave registers: the accumulator layout of one
// product is the operand layout of the next (PTX ISA, "Matrix fragments for mma.m16n8k16").
namespace zg::cuda {

inline constexpr int mma_warps = 4, mma_threads = lanes * mma_warps;
inline constexpr float log2_e = 1.44269504f, ln_2 = 0.693147181f;

/// The number of indices of [first, first + most) that are below `limit`.
template <int most>
__device__ inline int count_below(int64_t limit, int64_t first) {
  return static_cast<int>(min(max(limit - first, int64_t{0}), int64_t{most}));
}

/// Starts to copy rows [first, first + rows) of a head, `token` elements apart, to a [rows, width]
/// matrix in shared memory. Rows from `limit` on and columns from D on become 0. All threads of the
/// block call it; each copies 16 bytes of every `rows_per_step`-th row.
template <int width, int rows, class T>
__device__ inline void load_rows_async(SharedAddress matrix, const T* head, int64_t token,
                                       int64_t first, int64_t limit, int D) {
  constexpr int row_vectors = width / vector_elements, rows_per_step = mma_threads / row_vectors;
  static_assert(rows % rows_per_step == 0);
  static_assert(rows_per_step % 8 == 0);  // so all rows of a thread have the same swizzle
  const int row = static_cast<int>(threadIdx.x) / row_vectors;
  const int column = static_cast<int>(threadIdx.x) % row_vectors;
  const int count = column * vector_elements < D ? count_below<rows>(limit, first) : 0;
  const SharedAddress to = vector_address<width>(matrix, row, column);
  const T* from = head + (first + row) * token + column * vector_elements;
#pragma unroll
  for (int step = 0; step < rows; step += rows_per_step) {
    copy_async(to + bytes_of_rows<width>(step), from, row + step < count ? 16 : 0);
    from += rows_per_step * token;
  }
}

/// A warp's f32 tile of [tiles * 16, columns], in registers: the accumulators of 16 x 8 products.
/// Each lane holds values[i][n][e], the element at row accumulator_row(i, e) and column
/// accumulator_column(n, e).
template <int tiles, int columns>
struct Accumulators {
  float values[tiles][columns / 8][4];

  /// Calls f(i, n, e) for each element that the lane holds.
  template <class F>
  __device__ static void for_each(const F& f) {
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int n = 0; n < columns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) f(i, n, e);
  }
  __device__ void scale(float factor) {
    for_each([&](int i, int n, int e) { values[i][n][e] *= factor; });
  }
};

/// The row and the column, within the warp's tile, of this lane's element [i][n][e]. (Accumulator
/// fragment of mma.m16n8k16: e = 0, 1 are neighbours in a row; e = 2, 3 are 8 rows below.)
__device__ inline int accumulator_row(int i, int e) {
  return i * 16 + e / 2 * 8 + static_cast<int>(threadIdx.x) % lanes / 4;
}
__device__ inline int accumulator_column(int n, int e) {
  return n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2;
}

/// Terms that a kernel adds to the scaled products: nothing, ALiBi, or at run time any of dense
/// bias, ALiBi and dropout. A template argument, because the tests at run time cost registers.
enum class Extras { none, alibi, all };

inline Extras extras_of(const AttentionCall& call) {
  if (call.bias || call.shape.dropout > 0.0f) return Extras::all;
  return call.alibi_slopes ? Extras::alibi : Extras::none;
}
/// Calls f with extras_of(call) as a std::integral_constant.
template <class F>
void with_extras(const AttentionCall& call, const F& f) {
  switch (extras_of(call)) {
    case Extras::none:
      return f(std::integral_constant<Extras, Extras::none>());
    case Extras::alibi:
      return f(std::integral_constant<Extras, Extras::alibi>());
    case Extras::all:
      return f(std::integral_constant<Extras, Extras::all>());
  }
}

/// The head's ALiBi slope divided by the scale, to be added to products that are not scaled yet.
template <Extras extras>
__device__ inline float slope_of_products(const AttentionCall& a, const HeadBlock& head) {
  return extras == Extras::alibi ? __fdiv_rn(a.alibi_slopes[head.h], a.shape.scale) : 0.0f;
}
/// Adds the ALiBi bias: slope * (first + column - row) to each element. The distances are integers
/// below 2^24, which f32 represents exactly.
template <int tiles, int columns>
__device__ inline void add_alibi(Accumulators<tiles, columns>& products, float slope,
                                 int64_t first) {
  const float lane_distance =
      static_cast<float>(first + accumulator_column(0, 0) - accumulator_row(0, 0));
  products.for_each([&](int i, int n, int e) {
    const float distance = lane_distance + static_cast<float>(n * 8 + e % 2 - (i * 16 + e / 2 * 8));
    products.values[i][n][e] = __fmaf_rn(slope, distance, products.values[i][n][e]);
  });
}

/// The mask of a tile whose first query is t0 and whose first key is j0. Queries t and keys j in
/// this struct are counted from t0 and j0.
struct Mask {
  int queries, keys;  ///< how many exist from t0 and j0 on
  int diagonal;       ///< causal: query t sees key j if j - t < diagonal
  int edge;           ///< window: and if j - t >= edge
  /// The document's queries, or all without documents, end at `query_end`. j0 is not below the
  /// document's first key.
  __device__ Mask(const VisibleKeys& visible, int64_t query_end, int64_t t0, int64_t j0)
      : queries(clamped(query_end - t0)),
        keys(clamped(visible.limit - j0)),
        diagonal(clamped(t0 - j0 + visible.ahead)),
        edge(visible.window > 0 ? clamped(t0 - j0 + visible.ahead - visible.window) : -far) {}
  /// From now on for the tile that is `count` keys, or queries, later.
  __device__ void skip_keys(int count) { keys -= count, diagonal -= count, edge -= count; }
  __device__ void skip_queries(int count) { queries -= count, diagonal += count, edge += count; }
  __device__ bool hides(int t, int j) const {
    return t >= queries || j >= keys || j - t >= diagonal || j - t < edge;
  }
  /// Whether any element of the tile [query_count, key_count] is hidden. Most tiles have none and
  /// skip the test of each element.
  __device__ bool hides_some(int query_count, int key_count) const {
    return query_count > queries || key_count > keys || key_count > diagonal ||
           1 - query_count < edge;
  }

 private:
  static constexpr int far = 1 << 30;
  __device__ static int clamped(int64_t x) {
    return static_cast<int>(min(max(x, int64_t{-far}), int64_t{far}));
  }
};

/// products = R S^T for the warp's resident rows R, rows [row, row + tiles * 16) of the shared
/// matrix `resident`, and all rows S of the shared matrix `streamed`. Both have `width` columns of
/// T. `unrolled` groups of 16 columns are multiplied without a branch.
template <class T, int width, int unrolled = width / 16, int tiles, int columns>
__device__ inline void multiply_rows(Accumulators<tiles, columns>& products, SharedAddress resident,
                                     int row, SharedAddress streamed) {
  products = {};
#pragma unroll(unrolled)
  for (int k = 0; k < width / 16; ++k) {
    uint32_t a[tiles][4];
#pragma unroll
    for (int i = 0; i < tiles; ++i) load_a<width>(a[i], resident, row + 16 * i, k);
#pragma unroll
    for (int n = 0; n < columns / 16; ++n) {
      uint32_t b[4];
      load_b_by_columns<width>(b, streamed, 16 * n, k);
#pragma unroll
      for (int i = 0; i < tiles; ++i) {
        multiply_fragments<T>(products.values[i][2 * n], a[i], b[0], b[1]);
        multiply_fragments<T>(products.values[i][2 * n + 1], a[i], b[2], b[3]);
      }
    }
  }
}

/// sums += F S for the warp's f32 factors F [tiles * 16, columns], rounded to T, and the shared
/// matrix `streamed` S [columns, width]. The accumulators of F are the fragments of a without any
/// exchange between lanes.
template <class T, int width, int tiles, int columns>
__device__ inline void add_rows(Accumulators<tiles, width>& sums,
                                const Accumulators<tiles, columns>& factors,
                                SharedAddress streamed) {
#pragma unroll
  for (int k = 0; k < columns / 16; ++k) {
    uint32_t a[tiles][4];
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&from)[4] = factors.values[i][2 * k + half];
        a[i][2 * half] = pack<T>(from[0], from[1]);
        a[i][2 * half + 1] = pack<T>(from[2], from[3]);
      }
#pragma unroll
    for (int n = 0; n < width / 16; ++n) {
      uint32_t b[4];
      load_b_by_rows<width>(b, streamed, k, n);
#pragma unroll
      for (int i = 0; i < tiles; ++i) {
        multiply_fragments<T>(sums.values[i][2 * n], a[i], b[0], b[1]);
        multiply_fragments<T>(sums.values[i][2 * n + 1], a[i], b[2], b[3]);
      }
    }
  }
}

/// The sum, or the maximum, over the four lanes that hold a row of an accumulator tile.
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(all_lanes, x, 1);
  return x + __shfl_xor_sync(all_lanes, x, 2);
}
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
}

/// The online softmax of a warp's queries (Dao 2023, arXiv:2307.08691, algorithm 1): it sees the
/// scores of some keys at a time and keeps each row's maximum and sum of weights. Scores are the
/// products q . k without the scale: exp(scale * s) is computed as 2^(factor * s) with one
/// multiplication. A lane keeps rows [i][half], half 0 and 1 being 8 rows apart.
template <int tiles>
struct OnlineSoftmax {
  float factor;                    ///< scale * log2(e): 2^(factor * score) = exp(scale * score)
  float maximum[tiles][2];         ///< largest score of the row so far, over all lanes
  float sum[tiles][2];             ///< sum of the row's weights, over this lane's keys only
  float rescale_factor[tiles][2];  ///< by which the last add() multiplied earlier sums

  __device__ explicit OnlineSoftmax(float to_power) : factor(to_power) {
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Below every score, and finite after the multiplication by `factor`: if all scores so far
        // are minus infinity, the weights are 0 and not NaN.
        maximum[i][half] = -0x1p100f;
        sum[i][half] = 0.0f;
      }
  }

  /// Replaces the scores of one step by their weights relative to the new maximum. Afterwards
  /// rescale() adapts the output that was accumulated with earlier maxima.
  template <int columns>
  __device__ void add(Accumulators<tiles, columns>& scores) {
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float new_max = maximum[i][half];
#pragma unroll
        for (int n = 0; n < columns / 8; ++n)
          new_max = fmaxf(new_max,
                          fmaxf(scores.values[i][n][2 * half], scores.values[i][n][2 * half + 1]));
        new_max = row_max(new_max);
        const float shift = -new_max * factor;
        rescale_factor[i][half] = exp2_fast((maximum[i][half] - new_max) * factor);
        maximum[i][half] = new_max;
        sum[i][half] *= rescale_factor[i][half];
#pragma unroll
        for (int n = 0; n < columns / 8; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            float& score = scores.values[i][n][e];
            score = exp2_fast(__fmaf_rn(score, factor, shift));
            sum[i][half] += score;
          }
      }
  }
  template <int width>
  __device__ void rescale(Accumulators<tiles, width>& out) const {
    out.for_each([&](int i, int n, int e) { out.values[i][n][e] *= rescale_factor[i][e / 2]; });
  }

  /// Divides `out` by the sums of weights. If the call has a log_sum, writes it for queries
  /// [t0, query_end) of the warp: scale * maximum + log(sum).
  template <int width>
  __device__ void finish(Accumulators<tiles, width>& out, const AttentionCall& a,
                         const HeadBlock& head, int64_t t0, int64_t query_end) {
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t t = t0 + accumulator_row(i, 2 * half);
        // The sum is at least 1 unless every key is hidden.
        const float total = row_sum(sum[i][half]);
        const float inverse_sum = total == 0.0f ? 0.0f : __fdiv_rn(1.0f, total);
#pragma unroll
        for (int n = 0; n < width / 8; ++n) {
          out.values[i][n][2 * half] *= inverse_sum;
          out.values[i][n][2 * half + 1] *= inverse_sum;
        }
        if (a.log_sum && t < query_end && threadIdx.x % 4 == 0)
          a.log_sum[(head.b * a.shape.H + head.h) * a.shape.T + t] =
              maximum[i][half] * factor * ln_2 + logf(total);
      }
  }
};

/// Backward: log_sum of query t in base 2, since weights are computed as powers of 2. It is
/// infinite, and the weights are 0, from `query_end` on and for a query whose keys are all hidden.
__device__ inline float log_sum_of(const AttentionCall& a, const HeadBlock& head, int64_t t,
                                   int64_t query_end) {
  if (t >= query_end) return INFINITY;
  const float log_sum = a.log_sum[row_index(a, head, t)];
  return log_sum == -INFINITY ? INFINITY : log_sum * log2_e;
}

/// Backward: dout_t . out_t for the queries t of a tile; 0 from `query_end` on. Four lanes hold one
/// query: each adds every fourth vector of the row, and row_sum() adds the four lanes. Writes
/// row_dots.
template <class T>
__device__ inline float dot_row(const AttentionCall& a, const HeadBlock& head, int64_t t,
                                int64_t query_end) {
  const int lane = static_cast<int>(threadIdx.x) % 4, D = static_cast<int>(a.shape.D);
  float dot = 0.0f;
  if (t < query_end) {
    const T* const out = head_data<const T>(a.out, a.shape.out, head) + t * a.shape.out.token;
    const T* const dout = head_data<const T>(a.dout, a.shape.out, head) + t * a.shape.out.token;
    for (int d = lane * vector_elements; d < D; d += 4 * vector_elements) {
      const auto x = *reinterpret_cast<const Vec<T, vector_elements>*>(out + d);
      const auto y = *reinterpret_cast<const Vec<T, vector_elements>*>(dout + d);
#pragma unroll
      for (int i = 0; i < vector_elements; ++i)
        dot = __fmaf_rn(to_float(x.v[i]), to_float(y.v[i]), dot);
    }
  }
  dot = row_sum(dot);
  if (lane == 0 && t < query_end) a.row_dots[row_index(a, head, t)] = dot;
  return dot;
}

/// Rounds a warp's tile to T and writes it to rows [first, first + tiles * 16) of a head; skips
/// rows from `limit` on and columns from D on.
template <int width, int tiles, class T>
__device__ inline void write_rows(T* head, int64_t token, int64_t first, int64_t limit, int D,
                                  const Accumulators<tiles, width>& values) {
#pragma unroll
  for (int i = 0; i < tiles; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first + accumulator_row(i, 2 * half);
      if (row >= limit) continue;
#pragma unroll
      for (int n = 0; n < width / 8; ++n) {
        const int d = accumulator_column(n, 0);
        if (d < D)
          *reinterpret_cast<uint32_t*>(head + row * token + d) =
              pack<T>(values.values[i][n][2 * half], values.values[i][n][2 * half + 1]);
      }
    }
}

}  // namespace zg::cuda
