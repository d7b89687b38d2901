#include "zerograd/kernels/attention/attention.cuh"

#include <cfloat>
#include <string_view>

// Attention in f32 on the ordinary cores, for every dtype, head size up to 1024 and layout.
//
// A block of 8 warps computes the results of 8 * `rows` rows of one head, its resident rows:
// queries for out and dq, keys for dk and dv. It copies them to shared memory once, as floats. The
// rows of the other kind pass through one tile in shared memory, 32 at a time. A warp handles
// `rows` resident rows. For dot products a lane reads one row of the tile; for weighted sums a lane
// handles every 32nd column, `chunks` columns in all. Each output is computed by one block in a
// fixed order, so repeated runs give the same bits.
namespace zg::cuda {
namespace {

constexpr int warps = 8, threads = lanes * warps;

/// Sizes in shared memory, in floats: the tile, then 1 or 2 resident matrices [block_rows, width],
/// then as many matrices of factors (weights or score gradients) [block_rows, 32].
template <int rows, int chunks>
struct SharedLayout {
  static constexpr int block_rows = warps * rows;  // resident rows of the block
  static constexpr int width = lanes * chunks;     // columns of a row, padded with zeros
  static constexpr int tile_width = width + 1;     // one more column avoids bank conflicts
  static constexpr int tile_size = lanes * tile_width;
  static constexpr int resident_size = block_rows * width;
  static constexpr int factors_size = block_rows * lanes;
  /// All of it, with `operands` resident matrices.
  static constexpr int size(int operands) {
    return tile_size + operands * (resident_size + factors_size);
  }
};

/// Copies rows [first, first + count) of a head as floats. Rows >= limit and columns >= D are 0.
template <int width, class T>
__device__ inline void load_rows(float* to, int stride, int count, const T* head, int64_t token,
                                 int64_t first, int64_t limit, int D) {
  for (int i = static_cast<int>(threadIdx.x); i < count * width; i += threads) {
    const int row = i / width, d = i % width;
    const bool inside = first + row < limit && d < D;
    to[row * stride + d] = inside ? to_float(head[(first + row) * token + d]) : 0.0f;
  }
}

/// products[r] = dot product of the warp's resident row r and the lane's row of the tile.
template <int rows, int chunks>
__device__ inline void multiply_rows(float (&products)[rows], const float* resident,
                                     const float* tile, int D) {
  using M = SharedLayout<rows, chunks>;
  const float* const lane_row = tile + threadIdx.x % lanes * M::tile_width;
#pragma unroll
  for (int r = 0; r < rows; ++r) products[r] = 0.0f;
#pragma unroll 4
  for (int d = 0; d < D; ++d)
#pragma unroll
    for (int r = 0; r < rows; ++r)
      products[r] = __fmaf_rn(resident[r * M::width + d], lane_row[d], products[r]);
}

/// sums[r] += sum_j factors[r][j] * row j of the tile, in the columns of this lane, for j < count.
template <int rows, int chunks>
__device__ inline void add_rows(float (&sums)[rows][chunks], const float* factors,
                                const float* tile, int count) {
  using M = SharedLayout<rows, chunks>;
  const float* column = tile + threadIdx.x % lanes;
  for (int j = 0; j < count; ++j, column += M::tile_width) {
    float values[chunks];
#pragma unroll
    for (int c = 0; c < chunks; ++c) values[c] = column[c * lanes];
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int c = 0; c < chunks; ++c)
        sums[r][c] = __fmaf_rn(factors[r * lanes + j], values[c], sums[r][c]);
  }
}

template <int chunks, class T>
__device__ inline void write_row(T* to, const float (&values)[chunks], int D) {
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    const int d = c * lanes + static_cast<int>(threadIdx.x) % lanes;
    if (d < D) to[d] = from_float<T>(values[c]);
  }
}

/// The forward pass: Dao 2023, arXiv:2307.08691, algorithm 1. After each tile of keys, maximum[r]
/// is the largest score of query r so far, sum[r] this lane's share of the sum of exp(score -
/// maximum), and out[r] the sum of weight * v.
template <class T, int rows, int chunks>
__global__ void __launch_bounds__(threads) forward(AttentionCall a, int64_t blocks_per_head) {
  using M = SharedLayout<rows, chunks>;
  const AttentionShape& s = a.shape;
  const HeadBlock head(s, blocks_per_head), key_head = head.with_head(head.h / s.group());
  const T* const k = head_data<const T>(a.k, s.k, key_head);
  const T* const v = head_data<const T>(a.v, s.v, key_head);
  const int warp = static_cast<int>(threadIdx.x) / lanes,
            lane = static_cast<int>(threadIdx.x) % lanes;
  const int D = static_cast<int>(s.D);
  float* const tile = dynamic_shared<float>();
  float* const q = tile + M::tile_size;
  float* const weights = q + M::resident_size + warp * rows * lanes;
  for (ResidentRows resident(a, head, M::block_rows, s.T); resident.next();) {
    const VisibleKeys keys(a, head, resident);
    const int64_t t = resident.begin + warp * rows;
    const int64_t last = min(resident.begin + M::block_rows, resident.end) - 1;
    // The warp needs keys [key_begin, key_end), which its queries see. None if it has no query.
    const int64_t key_begin = keys.begin(t);
    const int64_t key_end = t < resident.end ? keys.end(min(t + rows, resident.end) - 1) : 0;
    __syncthreads();
    load_rows<M::width>(q, M::width, M::block_rows, head_data<const T>(a.q, s.q, head), s.q.token,
                        resident.begin, resident.end, D);
    float maximum[rows], sum[rows], out[rows][chunks];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      maximum[r] =
          -FLT_MAX;  // finite, so that a score of minus infinity has weight 0 rather than NaN
      sum[r] = 0.0f;
#pragma unroll
      for (int c = 0; c < chunks; ++c) out[r][c] = 0.0f;
    }
    for (int64_t j0 = keys.first_step(resident.begin, lanes); j0 < keys.end(last); j0 += lanes) {
      __syncthreads();
      load_rows<M::width>(tile, M::tile_width, lanes, k, s.k.token, j0, keys.limit, D);
      __syncthreads();
      const bool needed = j0 < key_end && j0 + lanes > key_begin;
      float products[rows];
      if (needed) multiply_rows<rows, chunks>(products, q + warp * rows * M::width, tile, D);
      __syncthreads();
      load_rows<M::width>(tile, M::tile_width, lanes, v, s.v.token, j0, keys.limit, D);
      const int64_t j = j0 + lane;
      if (needed) {
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          const bool visible = t + r < resident.end && keys.sees(t + r, j);
          const float score = visible ? score_of(a, head, t + r, j, products[r]) : -FLT_MAX;
          const float new_maximum =
              warp_max(score > maximum[r] || score != score ? score : maximum[r]);
          const float weight = visible ? expf(score - new_maximum) : 0.0f,
                      rescale_factor = expf(maximum[r] - new_maximum);
          maximum[r] = new_maximum;
          sum[r] = sum[r] * rescale_factor + weight;  // sum of this lane; warp_sum() adds all lanes
#pragma unroll
          for (int c = 0; c < chunks; ++c) out[r][c] *= rescale_factor;
          weights[r * lanes + lane] = visible ? weight * dropout_factor(s, head, t + r, j) : 0.0f;
        }
      }
      __syncthreads();
      if (needed)
        add_rows<rows, chunks>(out, weights, tile,
                               static_cast<int>(min(key_end - j0, int64_t{lanes})));
    }
    T* const to = head_data<T>(a.out, s.out, head);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const float total = warp_sum(sum[r]);
      if (t + r >= resident.end) continue;
        // The sum is at least 1 unless every key is hidden.
#pragma unroll
      for (int c = 0; c < chunks; ++c)
        out[r][c] = total == 0.0f ? 0.0f : __fdiv_rn(out[r][c], total);
      write_row(to + (t + r) * s.out.token, out[r], D);
      if (a.log_sum && lane == 0)
        a.log_sum[(head.b * s.H + head.h) * s.T + t + r] = maximum[r] + logf(total);
    }
  }
}

/// dout_t . out_t, by one warp: a lane adds every 32nd element, and warp_sum() adds the lanes.
template <class T>
__device__ inline float dot_row(const T* out, const float* dout, int D) {
  float sum = 0.0f;
  for (int d = static_cast<int>(threadIdx.x) % lanes; d < D; d += lanes)
    sum = __fmaf_rn(to_float(out[d]), dout[d], sum);
  return warp_sum(sum);
}

/// Backward pass for query t and key j: `product` is q_t . k_j, `dproduct` is dout_t . v_j. Let P
/// be the weight, f its dropout factor and D_t = dout_t . out_t (row_dots). Then dv_j = sum_t f P
/// dout_t, and the gradient of the score is P (f dout_t . v_j - D_t). The document has the queries
/// below `queries`.
struct PairGradient {
  float weight, dscore;  // f P; score gradient times the scale
};
__device__ inline PairGradient pair_gradient(const AttentionCall& a, const HeadBlock& head,
                                             const VisibleKeys& keys, int64_t queries, int64_t t,
                                             int64_t j, float product, float dproduct) {
  const AttentionShape& s = a.shape;
  if (t >= queries || !keys.sees(t, j)) return {0.0f, 0.0f};
  const int64_t row = row_index(a, head, t);
  const float log_sum = a.log_sum[row];
  if (log_sum == -INFINITY) return {0.0f, 0.0f};  // the bias hides all keys
  const float weight = expf(score_of(a, head, t, j, product) - log_sum);
  const float factor = dropout_factor(s, head, t, j);
  return {weight * factor, weight * (factor * dproduct - a.row_dots[row]) * s.scale};
}

template <class T, int rows, int chunks>
__global__ void __launch_bounds__(threads, 1)
    backward_queries(AttentionCall a, int64_t blocks_per_head) {
  using M = SharedLayout<rows, chunks>;
  const AttentionShape& s = a.shape;
  const HeadBlock head(s, blocks_per_head), key_head = head.with_head(head.h / s.group());
  const T* const k = head_data<const T>(a.k, s.k, key_head);
  const T* const v = head_data<const T>(a.v, s.v, key_head);
  const int warp = static_cast<int>(threadIdx.x) / lanes,
            lane = static_cast<int>(threadIdx.x) % lanes;
  const int D = static_cast<int>(s.D);
  float* const tile = dynamic_shared<float>();
  float *const q = tile + M::tile_size, *const dout = q + M::resident_size;
  float* const dscores = dout + M::resident_size + warp * rows * lanes;
  for (ResidentRows resident(a, head, M::block_rows, s.T); resident.next();) {
    const VisibleKeys keys(a, head, resident);
    const int64_t t = resident.begin + warp * rows;
    const int64_t last = min(resident.begin + M::block_rows, resident.end) - 1;
    const int64_t key_begin = keys.begin(t);
    const int64_t key_end = t < resident.end ? keys.end(min(t + rows, resident.end) - 1) : 0;
    __syncthreads();
    load_rows<M::width>(q, M::width, M::block_rows, head_data<const T>(a.q, s.q, head), s.q.token,
                        resident.begin, resident.end, D);
    load_rows<M::width>(dout, M::width, M::block_rows, head_data<const T>(a.dout, s.out, head),
                        s.out.token, resident.begin, resident.end, D);
    __syncthreads();
    const T* const out = head_data<const T>(a.out, s.out, head);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (t + r >= resident.end) continue;  // all lanes of a warp have the same t
      const float dot =
          dot_row(out + (t + r) * s.out.token, dout + (warp * rows + r) * M::width, D);
      if (lane == 0) a.row_dots[row_index(a, head, t + r)] = dot;
    }
    __syncwarp();  // pair_gradient() reads row_dots in every lane
    float dq[rows][chunks] = {};
    for (int64_t j0 = keys.first_step(resident.begin, lanes); j0 < keys.end(last); j0 += lanes) {
      const bool needed = j0 < key_end && j0 + lanes > key_begin;
      float products[rows], dproducts[rows];
      __syncthreads();
      load_rows<M::width>(tile, M::tile_width, lanes, v, s.v.token, j0, keys.limit, D);
      __syncthreads();
      if (needed) multiply_rows<rows, chunks>(dproducts, dout + warp * rows * M::width, tile, D);
      __syncthreads();
      load_rows<M::width>(tile, M::tile_width, lanes, k, s.k.token, j0, keys.limit, D);
      __syncthreads();
      if (!needed) continue;
      multiply_rows<rows, chunks>(products, q + warp * rows * M::width, tile, D);
#pragma unroll
      for (int r = 0; r < rows; ++r)
        dscores[r * lanes + lane] =
            pair_gradient(a, head, keys, resident.end, t + r, j0 + lane, products[r], dproducts[r])
                .dscore;
      __syncwarp();
      add_rows<rows, chunks>(dq, dscores, tile,
                             static_cast<int>(min(key_end - j0, int64_t{lanes})));
    }
    T* const to = head_data<T>(a.dq, s.q, head);
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if (t + r < resident.end) write_row(to + (t + r) * s.q.token, dq[r], D);
  }
}

template <class T, int rows, int chunks>
__global__ void __launch_bounds__(threads, 1)
    backward_keys(AttentionCall a, int64_t blocks_per_head) {
  using M = SharedLayout<rows, chunks>;
  const AttentionShape& s = a.shape;
  const HeadBlock key_head(s.key_heads(), blocks_per_head);
  const int warp = static_cast<int>(threadIdx.x) / lanes,
            lane = static_cast<int>(threadIdx.x) % lanes;
  const int D = static_cast<int>(s.D);
  float* const tile = dynamic_shared<float>();
  float *const k = tile + M::tile_size, *const v = k + M::resident_size;
  float* const weights = v + M::resident_size + warp * rows * lanes;
  float* const dscores = weights + M::factors_size;
  for (ResidentRows resident(a, key_head, M::block_rows, s.keys); resident.next();) {
    const VisibleKeys keys(a, key_head, resident);
    const int64_t j = resident.begin + warp * rows;
    const int64_t key_end = min(resident.begin + M::block_rows, resident.end);
    const int64_t queries = a.starts ? resident.end : s.T;
    const int64_t first = keys.first_query_step(resident.begin, lanes);
    const int64_t query_end = keys.query_end(resident.begin, key_end, queries);
    __syncthreads();
    load_rows<M::width>(k, M::width, M::block_rows, head_data<const T>(a.k, s.k, key_head),
                        s.k.token, resident.begin, min(keys.limit, resident.end), D);
    load_rows<M::width>(v, M::width, M::block_rows, head_data<const T>(a.v, s.v, key_head),
                        s.v.token, resident.begin, min(keys.limit, resident.end), D);
    float dk[rows][chunks] = {}, dv[rows][chunks] = {};
    for (int64_t h = key_head.h * s.group(); h < (key_head.h + 1) * s.group(); ++h) {
      const HeadBlock head = key_head.with_head(h);
      const T* const q = head_data<const T>(a.q, s.q, head);
      const T* const dout = head_data<const T>(a.dout, s.out, head);
      for (int64_t t0 = first; t0 < query_end; t0 += lanes) {
        float products[rows], dproducts[rows];
        __syncthreads();
        load_rows<M::width>(tile, M::tile_width, lanes, q, s.q.token, t0, queries, D);
        __syncthreads();
        multiply_rows<rows, chunks>(products, k + warp * rows * M::width, tile, D);
        __syncthreads();
        load_rows<M::width>(tile, M::tile_width, lanes, dout, s.out.token, t0, queries, D);
        __syncthreads();
        multiply_rows<rows, chunks>(dproducts, v + warp * rows * M::width, tile, D);
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          const PairGradient pair =
              pair_gradient(a, head, keys, queries, t0 + lane, j + r, products[r], dproducts[r]);
          weights[r * lanes + lane] = pair.weight;
          dscores[r * lanes + lane] = pair.dscore;
        }
        __syncwarp();
        const int count = static_cast<int>(min(queries - t0, int64_t{lanes}));
        add_rows<rows, chunks>(dv, weights, tile, count);
        __syncthreads();
        load_rows<M::width>(tile, M::tile_width, lanes, q, s.q.token, t0, queries, D);
        __syncthreads();
        add_rows<rows, chunks>(dk, dscores, tile, count);
      }
    }
    T* const to_k = head_data<T>(a.dk, s.k, key_head);
    T* const to_v = head_data<T>(a.dv, s.v, key_head);
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if (j + r < resident.end) {
        write_row(to_k + (j + r) * s.k.token, dk[r], D);
        write_row(to_v + (j + r) * s.v.token, dv[r], D);
      }
  }
}

struct MaskSites {
  FaultSite starts, key_lengths;
};
constexpr MaskSites forward_sites = {FaultSite::attention_forward_starts,
                                     FaultSite::attention_forward_key_lengths},
                    backward_sites = {FaultSite::attention_backward_starts,
                                      FaultSite::attention_backward_key_lengths};

/// Checks one start or key length. A start must be t or the start of the previous token. A fault
/// reports a token, its value and an exclusive upper limit. If a start is below the start of the
/// previous token, the previous token is reported, because its start is above this limit.
__global__ void __launch_bounds__(threads)
    check_mask_values(AttentionCall a, MaskSites sites, Fault* fault) {
  const AttentionShape& s = a.shape;
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (a.key_lengths && i < s.B && (a.key_lengths[i] < 0 || a.key_lengths[i] > s.keys))
    report(fault, sites.key_lengths, i, a.key_lengths[i], s.keys + 1);
  if (!a.starts || i >= s.B * s.T) return;
  const int64_t t = i % s.T, start = a.starts[i], before = t > 0 ? a.starts[i - 1] : 0;
  if (start < 0 || start > t)
    report(fault, sites.starts, i, start, t + 1);
  else if (start < before)
    report(fault, sites.starts, i - 1, before, start + 1);
  else if (start != before && start != t)
    report(fault, sites.starts, i, start, before + 1);
}

/// Calls f(rows, chunks), both std::integral_constant, for head size D <= 1024. Longer rows take
/// more registers and shared memory, so a warp then has one row instead of four.
template <class F>
void with_columns(int64_t D, const F& f) {
  const auto call = [&]<int rows, int chunks>() {
    f(std::integral_constant<int, rows>(), std::integral_constant<int, chunks>());
  };
  if (D <= lanes) return call.template operator()<4, 1>();
  if (D <= 2 * lanes) return call.template operator()<4, 2>();
  if (D <= 4 * lanes) return call.template operator()<4, 4>();
  if (D <= 8 * lanes) return call.template operator()<4, 8>();
  call.template operator()<1, 32>();
}

/// Launches one block for every `rows` of the `tokens` rows of each of `heads` heads, with `floats`
/// floats of dynamic shared memory.
void launch_heads(const Work& work, void (*kernel)(AttentionCall, int64_t), int64_t heads,
                  int64_t rows, int64_t tokens, int floats, const AttentionCall& call,
                  Stream& stream) {
  const int64_t blocks_per_head = (tokens + rows - 1) / rows;
  launch(work, kernel,
         {blocks_for(call.shape.B * heads * blocks_per_head, 1), dim3(threads),
          static_cast<size_t>(floats) * sizeof(float)},
         stream, call, blocks_per_head);
}

}  // namespace

void check_masks(const char* op, const AttentionCall& call, Stream& stream) {
  const int64_t n = call.starts ? call.shape.B * call.shape.T : call.shape.B;
  if (call.starts || call.key_lengths)
    launch({op, "check_mask_values", n * int64_t{sizeof(int32_t)}, n}, check_mask_values,
           {blocks_for(n, threads), dim3(threads)}, stream, call,
           std::string_view(op) == "attention_backward" ? backward_sites : forward_sites,
           fault_place(stream));
}

void plain_attention_forward(DType dtype, const AttentionCall& call, Stream& stream) {
  visit_floating(dtype, [&]<class T>(T) {
    with_columns(call.shape.D, [&](auto rows, auto chunks) {
      using M = SharedLayout<decltype(rows)::value, decltype(chunks)::value>;
      launch_heads(forward_work("plain_forward", dtype, call),
                   forward<T, decltype(rows)::value, decltype(chunks)::value>, call.shape.H,
                   M::block_rows, call.shape.T, M::size(1), call, stream);
    });
  });
}

void plain_attention_backward(DType dtype, const AttentionCall& call, Stream& stream) {
  visit_floating(dtype, [&]<class T>(T) {
    with_columns(call.shape.D, [&](auto rows, auto chunks) {
      constexpr int R = decltype(rows)::value, chunk_count = decltype(chunks)::value;
      using M = SharedLayout<R, chunk_count>;
      launch_heads(backward_queries_work("plain_backward_queries", dtype, call),
                   backward_queries<T, R, chunk_count>, call.shape.H, M::block_rows, call.shape.T,
                   M::size(2), call, stream);
      launch_heads(backward_keys_work("plain_backward_keys", dtype, call),
                   backward_keys<T, R, chunk_count>, call.shape.key_heads(), M::block_rows,
                   call.shape.keys, M::size(2), call, stream);
    });
  });
}

}  // namespace zg::cuda
