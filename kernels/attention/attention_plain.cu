#include "zerograd/kernels/attention/attention.cuh"

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
  const HeadBlock head(s, blocks_per_head);
  const T *const k = head_data<const T>(a.k, s.k, head), *const v =
                                                             head_data<const T>(a.v, s.v, head);
  const int warp = static_cast<int>(threadIdx.x) / lanes,
            lane = static_cast<int>(threadIdx.x) % lanes;
  const int D = static_cast<int>(s.D);
  float* const tile = dynamic_shared<float>();
  float* const q = tile + M::tile_size;
  float* const weights = q + M::resident_size + warp * rows * lanes;
  const int64_t t0 = head.block * M::block_rows, t = t0 + warp * rows;
  const int64_t last = min(t0 + M::block_rows, s.T) - 1;
  // The warp needs keys [0, key_end): those of its last query. 0 if the warp has no query.
  const int64_t key_end = t < s.T ? visible_keys(s, min(t + rows, s.T) - 1) : 0;
  load_rows<M::width>(q, M::width, M::block_rows, head_data<const T>(a.q, s.q, head), s.q.token, t0,
                      s.T, D);
  float maximum[rows], sum[rows], out[rows][chunks];
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    maximum[r] =
        -FLT_MAX;  // finite, so that a score of minus infinity has weight 0 rather than NaN
    sum[r] = 0.0f;
#pragma unroll
    for (int c = 0; c < chunks; ++c) out[r][c] = 0.0f;
  }
  for (int64_t j0 = 0; j0 < visible_keys(s, last); j0 += lanes) {
    __syncthreads();
    load_rows<M::width>(tile, M::tile_width, lanes, k, s.k.token, j0, s.keys, D);
    __syncthreads();
    float products[rows];
    if (j0 < key_end) multiply_rows<rows, chunks>(products, q + warp * rows * M::width, tile, D);
    __syncthreads();
    load_rows<M::width>(tile, M::tile_width, lanes, v, s.v.token, j0, s.keys, D);
    const int64_t j = j0 + lane;
    if (j0 < key_end) {
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const bool visible = t + r < s.T && j < visible_keys(s, t + r);
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
    if (j0 < key_end)
      add_rows<rows, chunks>(out, weights, tile,
                             static_cast<int>(min(key_end - j0, int64_t{lanes})));
  }
  T* const to = head_data<T>(a.out, s.out, head);
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    const float total = warp_sum(sum[r]);
    if (t + r >= s.T) continue;
#pragma unroll
    for (int c = 0; c < chunks; ++c) out[r][c] = __fdiv_rn(out[r][c], total);
    write_row(to + (t + r) * s.out.token, out[r], D);
    if (a.log_sum && lane == 0)
      a.log_sum[(head.b * s.H + head.h) * s.T + t + r] = maximum[r] + logf(total);
  }
}

/// row_dots[b, h, t] = dout_t . out_t, one warp for each query. Memory bound: reads out and dout
/// once.
template <class T>
__global__ void __launch_bounds__(threads) dot_rows(AttentionCall a, int64_t blocks_per_head) {
  const AttentionShape& s = a.shape;
  const HeadBlock head(s, blocks_per_head);
  const int64_t t = head.block * warps + threadIdx.x / lanes;
  if (t >= s.T) return;  // all lanes of a warp have the same t
  const T* const out = head_data<const T>(a.out, s.out, head) + t * s.out.token;
  const T* const dout = head_data<const T>(a.dout, s.out, head) + t * s.out.token;
  float sum = 0.0f;
  for (int64_t d = threadIdx.x % lanes; d < s.D; d += lanes)
    sum = __fmaf_rn(to_float(out[d]), to_float(dout[d]), sum);
  sum = warp_sum(sum);
  if (threadIdx.x % lanes == 0) a.row_dots[(head.b * s.H + head.h) * s.T + t] = sum;
}

/// Backward pass for query t and key j: `product` is q_t . k_j, `dproduct` is dout_t . v_j. Let P
/// be the weight, f its dropout factor and D_t = dout_t . out_t (row_dots). Then dv_j = sum_t f P
/// dout_t, and the gradient of the score is P (f dout_t . v_j - D_t).
struct PairGradient {
  float weight, dscore;  // f P; score gradient times the scale
};
__device__ inline PairGradient pair_gradient(const AttentionCall& a, const HeadBlock& head,
                                             int64_t t, int64_t j, float product, float dproduct) {
  const AttentionShape& s = a.shape;
  if (t >= s.T || j >= visible_keys(s, t)) return {0.0f, 0.0f};
  const int64_t row = (head.b * s.H + head.h) * s.T + t;
  const float weight = expf(score_of(a, head, t, j, product) - a.log_sum[row]);
  const float factor = dropout_factor(s, head, t, j);
  return {weight * factor, weight * (factor * dproduct - a.row_dots[row]) * s.scale};
}

template <class T, int rows, int chunks>
__global__ void __launch_bounds__(threads)
    backward_queries(AttentionCall a, int64_t blocks_per_head) {
  using M = SharedLayout<rows, chunks>;
  const AttentionShape& s = a.shape;
  const HeadBlock head(s, blocks_per_head);
  const T *const k = head_data<const T>(a.k, s.k, head), *const v =
                                                             head_data<const T>(a.v, s.v, head);
  const int warp = static_cast<int>(threadIdx.x) / lanes,
            lane = static_cast<int>(threadIdx.x) % lanes;
  const int D = static_cast<int>(s.D);
  float* const tile = dynamic_shared<float>();
  float *const q = tile + M::tile_size, *const dout = q + M::resident_size;
  float* const dscores = dout + M::resident_size + warp * rows * lanes;
  const int64_t t0 = head.block * M::block_rows, t = t0 + warp * rows;
  const int64_t key_end = t < s.T ? visible_keys(s, min(t + rows, s.T) - 1) : 0;
  load_rows<M::width>(q, M::width, M::block_rows, head_data<const T>(a.q, s.q, head), s.q.token, t0,
                      s.T, D);
  load_rows<M::width>(dout, M::width, M::block_rows, head_data<const T>(a.dout, s.out, head),
                      s.out.token, t0, s.T, D);
  float dq[rows][chunks] = {};
  for (int64_t j0 = 0; j0 < visible_keys(s, min(t0 + M::block_rows, s.T) - 1); j0 += lanes) {
    float products[rows], dproducts[rows];
    __syncthreads();
    load_rows<M::width>(tile, M::tile_width, lanes, v, s.v.token, j0, s.keys, D);
    __syncthreads();
    if (j0 < key_end)
      multiply_rows<rows, chunks>(dproducts, dout + warp * rows * M::width, tile, D);
    __syncthreads();
    load_rows<M::width>(tile, M::tile_width, lanes, k, s.k.token, j0, s.keys, D);
    __syncthreads();
    if (j0 >= key_end) continue;
    multiply_rows<rows, chunks>(products, q + warp * rows * M::width, tile, D);
#pragma unroll
    for (int r = 0; r < rows; ++r)
      dscores[r * lanes + lane] =
          pair_gradient(a, head, t + r, j0 + lane, products[r], dproducts[r]).dscore;
    __syncwarp();
    add_rows<rows, chunks>(dq, dscores, tile, static_cast<int>(min(key_end - j0, int64_t{lanes})));
  }
  T* const to = head_data<T>(a.dq, s.q, head);
#pragma unroll
  for (int r = 0; r < rows; ++r)
    if (t + r < s.T) write_row(to + (t + r) * s.q.token, dq[r], D);
}

template <class T, int rows, int chunks>
__global__ void __launch_bounds__(threads, 1)
    backward_keys(AttentionCall a, int64_t blocks_per_head) {
  using M = SharedLayout<rows, chunks>;
  const AttentionShape& s = a.shape;
  const HeadBlock head(s, blocks_per_head);
  const T* const q = head_data<const T>(a.q, s.q, head);
  const T* const dout = head_data<const T>(a.dout, s.out, head);
  const int warp = static_cast<int>(threadIdx.x) / lanes,
            lane = static_cast<int>(threadIdx.x) % lanes;
  const int D = static_cast<int>(s.D);
  float* const tile = dynamic_shared<float>();
  float *const k = tile + M::tile_size, *const v = k + M::resident_size;
  float* const weights = v + M::resident_size + warp * rows * lanes;
  float* const dscores = weights + M::factors_size;
  const int64_t j0 = head.block * M::block_rows, j = j0 + warp * rows;
  load_rows<M::width>(k, M::width, M::block_rows, head_data<const T>(a.k, s.k, head), s.k.token, j0,
                      s.keys, D);
  load_rows<M::width>(v, M::width, M::block_rows, head_data<const T>(a.v, s.v, head), s.v.token, j0,
                      s.keys, D);
  float dk[rows][chunks] = {}, dv[rows][chunks] = {};
  for (int64_t t0 = first_query(s, j0) / lanes * lanes; t0 < s.T; t0 += lanes) {
    float products[rows], dproducts[rows];
    __syncthreads();
    load_rows<M::width>(tile, M::tile_width, lanes, q, s.q.token, t0, s.T, D);
    __syncthreads();
    multiply_rows<rows, chunks>(products, k + warp * rows * M::width, tile, D);
    __syncthreads();
    load_rows<M::width>(tile, M::tile_width, lanes, dout, s.out.token, t0, s.T, D);
    __syncthreads();
    multiply_rows<rows, chunks>(dproducts, v + warp * rows * M::width, tile, D);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const PairGradient pair = pair_gradient(a, head, t0 + lane, j + r, products[r], dproducts[r]);
      weights[r * lanes + lane] = pair.weight;
      dscores[r * lanes + lane] = pair.dscore;
    }
    __syncwarp();
    const int count = static_cast<int>(min(s.T - t0, int64_t{lanes}));
    add_rows<rows, chunks>(dv, weights, tile, count);
    __syncthreads();
    load_rows<M::width>(tile, M::tile_width, lanes, q, s.q.token, t0, s.T, D);
    __syncthreads();
    add_rows<rows, chunks>(dk, dscores, tile, count);
  }
  T *const to_k = head_data<T>(a.dk, s.k, head), *const to_v = head_data<T>(a.dv, s.v, head);
#pragma unroll
  for (int r = 0; r < rows; ++r)
    if (j + r < s.keys) {
      write_row(to_k + (j + r) * s.k.token, dk[r], D);
      write_row(to_v + (j + r) * s.v.token, dv[r], D);
    }
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

/// Launches one block for every `rows` of the `tokens` rows of each head, with `floats` floats of
/// dynamic shared memory.
void launch_heads(const char* name, void (*kernel)(AttentionCall, int64_t), int64_t rows,
                  int64_t tokens, int floats, const AttentionCall& call, Stream& stream) {
  const int64_t blocks_per_head = (tokens + rows - 1) / rows;
  launch(name, kernel,
         {blocks_for(call.shape.B * call.shape.H * blocks_per_head, 1), dim3(threads),
          static_cast<size_t>(floats) * sizeof(float)},
         stream, call, blocks_per_head);
}

}  // namespace

void dot_rows_of_out(DType dtype, const AttentionCall& call, Stream& stream) {
  visit_floating(dtype, [&]<class T>(T) {
    launch_heads("attention_backward", dot_rows<T>, warps, call.shape.T, 0, call, stream);
  });
}

void plain_attention_forward(DType dtype, const AttentionCall& call, Stream& stream) {
  visit_floating(dtype, [&]<class T>(T) {
    with_columns(call.shape.D, [&](auto rows, auto chunks) {
      using M = SharedLayout<decltype(rows)::value, decltype(chunks)::value>;
      launch_heads("attention_forward", forward<T, decltype(rows)::value, decltype(chunks)::value>,
                   M::block_rows, call.shape.T, M::size(1), call, stream);
    });
  });
}

void plain_attention_backward(DType dtype, const AttentionCall& call, Stream& stream) {
  const char* const op = "attention_backward";
  visit_floating(dtype, [&]<class T>(T) {
    with_columns(call.shape.D, [&](auto rows, auto chunks) {
      constexpr int R = decltype(rows)::value, chunk_count = decltype(chunks)::value;
      using M = SharedLayout<R, chunk_count>;
      launch_heads(op, backward_queries<T, R, chunk_count>, M::block_rows, call.shape.T, M::size(2),
                   call, stream);
      launch_heads(op, backward_keys<T, R, chunk_count>, M::block_rows, call.shape.keys, M::size(2),
                   call, stream);
    });
  });
}

}  // namespace zg::cuda
