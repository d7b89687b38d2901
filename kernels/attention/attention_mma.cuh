#pragma once

#include "zerograd/kernels/attention/attention.cuh"
#include "zerograd/kernels/cuda/mma.cuh"

// Attention by the tensor cores. A warp owns `tiles` times 16 rows (queries, or for dk and dv keys)
// and iterates over the rows of the other kind. The block has two buffers in shared memory for the
// matrices of those rows: it computes with one while the next matrices are loaded into the other.
// Products of rows and the weights made from them stay in the accumulators, whose layout is that of
// the next product's operands.
namespace zg::cuda {

inline constexpr int mma_warps = 4, mma_threads = lanes * mma_warps;
inline constexpr float log2_e = 1.44269504f, ln_2 = 0.693147181f;

/// How many of [first, first + most) lie below `limit`.
template <int most>
__device__ inline int count_below(int64_t limit, int64_t first) {
  return static_cast<int>(min(max(limit - first, int64_t{0}), int64_t{most}));
}

/// Starts to copy rows [first, first + rows) of a head to shared memory, with zeros beyond `limit`
/// rows and D columns.
template <int width, int rows, class T>
__device__ inline void bring_rows(SharedAddress matrix, const T* head, int64_t token, int64_t first,
                                  int64_t limit, int D) {
  constexpr int pieces = width / piece, rows_of_step = mma_threads / pieces;
  static_assert(rows % rows_of_step == 0 && rows_of_step % 8 == 0);  // a step keeps the crossing
  const int row = static_cast<int>(threadIdx.x) / pieces;
  const int column = static_cast<int>(threadIdx.x) % pieces;
  const int count = column * piece < D ? count_below<rows>(limit, first) : 0;
  const SharedAddress to = piece_at<width>(matrix, row, column);
  const T* from = head + (first + row) * token + column * piece;
#pragma unroll
  for (int step = 0; step < rows; step += rows_of_step) {
    copy_async(to + bytes_of_rows<width>(step), from, row + step < count ? 16 : 0);
    from += rows_of_step * token;
  }
}

/// Accumulators of 16 x 8 products: rows of the warp's, columns of the other rows.
template <int tiles, int columns>
struct Products {
  float of[tiles][columns / 8][4];

  /// f(i, n, e) for each index of `of`: what the lane holds.
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
    for_each([&](int i, int n, int e) { of[i][n][e] *= factor; });
  }
};

/// The row of a product among the rows of the warp, and its column among the other rows.
__device__ inline int row_of(int i, int e) {
  return i * 16 + e / 2 * 8 + static_cast<int>(threadIdx.x) % lanes / 4;
}
__device__ inline int column_of(int n, int e) {
  return n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + e % 2;
}

/// The features that a kernel is compiled with beside the products: none, ALiBi, or all that a call
/// may need.
enum class Extras { none, alibi, all };

inline Extras extras_of(const AttentionCall& call) {
  if (call.bias || call.shape.dropout > 0.0f) return Extras::all;
  return call.alibi_slopes ? Extras::alibi : Extras::none;
}
/// f(with) for the Extras `with` as an integral constant.
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

/// The head's slope for products that have not been multiplied by the scale yet.
template <Extras extras>
__device__ inline float slope_of_products(const AttentionCall& a, const HeadPart& at) {
  return extras == Extras::alibi ? __fdiv_rn(a.alibi_slopes[at.h], a.shape.scale) : 0.0f;
}
/// Adds slope * (first + column - row) to the products: whole numbers, which floats hold.
template <int tiles, int columns>
__device__ inline void add_alibi(Products<tiles, columns>& products, float slope, int64_t first) {
  const float of_lane = static_cast<float>(first + column_of(0, 0) - row_of(0, 0));
  products.for_each([&](int i, int n, int e) {
    const float distance = of_lane + static_cast<float>(n * 8 + e % 2 - (i * 16 + e / 2 * 8));
    products.of[i][n][e] = __fmaf_rn(slope, distance, products.of[i][n][e]);
  });
}

/// Which of the queries from t0 on see which of the keys from j0 on; indices are relative to t0 and
/// j0.
struct Mask {
  int queries, keys;  ///< how many exist
  int diagonal;       ///< query t sees key j when j - t is below
  __device__ Mask(const AttentionShape& s, int64_t t0, int64_t j0)
      : queries(clamped(s.T - t0)),
        keys(clamped(s.keys - j0)),
        diagonal(s.causal ? clamped(t0 - j0 + s.offset + 1) : far) {}
  __device__ bool hides(int t, int j) const {
    return t >= queries || j >= keys || j - t >= diagonal;
  }
  /// Whether the mask hides one of the first `of_keys` keys from one of the first `of_queries`
  /// queries.
  __device__ bool hides_some(int of_queries, int of_keys) const {
    return of_queries > queries || of_keys > keys || of_keys > diagonal;
  }

 private:
  static constexpr int far = 1 << 30;
  __device__ static int clamped(int64_t x) {
    return static_cast<int>(min(max(x, int64_t{-far}), int64_t{far}));
  }
};

/// Products of the rows of `own` from `row` on with all rows of `other`.
template <class T, int width, int tiles, int columns>
__device__ inline void multiply_rows(Products<tiles, columns>& products, SharedAddress own, int row,
                                     SharedAddress other) {
  products = {};
#pragma unroll
  for (int k = 0; k < width / 16; ++k) {
    uint32_t a[tiles][4];
#pragma unroll
    for (int i = 0; i < tiles; ++i) load_a<width>(a[i], own, row + 16 * i, k);
#pragma unroll
    for (int n = 0; n < columns / 16; ++n) {
      uint32_t b[4];
      load_b_by_columns<width>(b, other, 16 * n, k);
#pragma unroll
      for (int i = 0; i < tiles; ++i) {
        multiply_fragments<T>(products.of[i][2 * n], a[i], b[0], b[1]);
        multiply_fragments<T>(products.of[i][2 * n + 1], a[i], b[2], b[3]);
      }
    }
  }
}

/// sums += factors * other: the rows of `other` weighted by a warp's factors, rounded to T.
template <class T, int width, int tiles, int columns>
__device__ inline void add_rows(Products<tiles, width>& sums,
                                const Products<tiles, columns>& factors, SharedAddress other) {
#pragma unroll
  for (int k = 0; k < columns / 16; ++k) {
    uint32_t a[tiles][4];
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&from)[4] = factors.of[i][2 * k + half];
        a[i][2 * half] = pack<T>(from[0], from[1]);
        a[i][2 * half + 1] = pack<T>(from[2], from[3]);
      }
#pragma unroll
    for (int n = 0; n < width / 16; ++n) {
      uint32_t b[4];
      load_b_by_rows<width>(b, other, k, n);
#pragma unroll
      for (int i = 0; i < tiles; ++i) {
        multiply_fragments<T>(sums.of[i][2 * n], a[i], b[0], b[1]);
        multiply_fragments<T>(sums.of[i][2 * n + 1], a[i], b[2], b[3]);
      }
    }
  }
}

/// The sum or maximum over the four lanes that hold a row.
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(all_lanes, x, 1);
  return x + __shfl_xor_sync(all_lanes, x, 2);
}
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
}

/// The online softmax of a warp's queries. Dao 2023, arXiv:2307.08691, algorithm 1. Scores stay
/// unscaled products of rows until the exponential, which is a power of two.
template <int tiles>
struct OnlineSoftmax {
  float factor;                         ///< converts a score to an exponent of two
  float best[tiles][2], sum[tiles][2];  ///< sums of the lane's keys; lanes join at the end
  float before[tiles][2];               ///< factor that rescales the sums from before the last step

  __device__ explicit OnlineSoftmax(float to_power) : factor(to_power) {
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Below every score, but where multiples stay finite: so a score of minus infinity has
        // weight 0 rather than NaN.
        best[i][half] = -0x1p100f;
        sum[i][half] = 0.0f;
      }
  }

  /// Turns a step's scores into weights.
  template <int columns>
  __device__ void add(Products<tiles, columns>& scores) {
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float now = best[i][half];
#pragma unroll
        for (int n = 0; n < columns / 8; ++n)
          now = fmaxf(now, fmaxf(scores.of[i][n][2 * half], scores.of[i][n][2 * half + 1]));
        now = row_max(now);
        const float shift = -now * factor;
        before[i][half] = exp2_fast((best[i][half] - now) * factor);
        best[i][half] = now;
        sum[i][half] *= before[i][half];
#pragma unroll
        for (int n = 0; n < columns / 8; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            float& score = scores.of[i][n][e];
            score = exp2_fast(__fmaf_rn(score, factor, shift));
            sum[i][half] += score;
          }
      }
  }
  template <int width>
  __device__ void rescale(Products<tiles, width>& out) const {
    out.for_each([&](int i, int n, int e) { out.of[i][n][e] *= before[i][e / 2]; });
  }

  /// Divides by the sums, and keeps their logarithms if they are wanted: of queries from t0 on.
  template <int width>
  __device__ void finish(Products<tiles, width>& out, const AttentionCall& a, const HeadPart& at,
                         int64_t t0) {
#pragma unroll
    for (int i = 0; i < tiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t t = t0 + row_of(i, 2 * half);
        const float total = row_sum(sum[i][half]), share = __fdiv_rn(1.0f, total);
#pragma unroll
        for (int n = 0; n < width / 8; ++n) {
          out.of[i][n][2 * half] *= share;
          out.of[i][n][2 * half + 1] *= share;
        }
        if (a.log_sum && t < a.shape.T && threadIdx.x % 4 == 0)
          a.log_sum[(at.b * a.shape.H + at.h) * a.shape.T + t] =
              best[i][half] * factor * ln_2 + logf(total);
      }
  }
};

/// Rows of `tiles` 16 x width accumulators, as T.
template <int width, int tiles, class T>
__device__ inline void write_rows(T* head, int64_t token, int64_t first, int64_t limit, int D,
                                  const Products<tiles, width>& values) {
#pragma unroll
  for (int i = 0; i < tiles; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first + row_of(i, 2 * half);
      if (row >= limit) continue;
#pragma unroll
      for (int n = 0; n < width / 8; ++n) {
        const int d = column_of(n, 0);
        if (d < D)
          *reinterpret_cast<uint32_t*>(head + row * token + d) =
              pack<T>(values.of[i][n][2 * half], values.of[i][n][2 * half + 1]);
      }
    }
}

}  // namespace zg::cuda
