#include "zerograd/kernels/attention/attention_mma.cuh"

// The backward pass on the tensor cores: Dao 2023, arXiv:2307.08691, algorithm 2, cut into two
// kernels. backward_keys computes dk and dv, one block for 64 keys; backward_queries computes dq,
// one block for 64 queries. So every gradient is written by one block in a fixed order, without
// atomics, and has the same bits in every run. Both kernels compute the weights again, from
// log_sum.
//
// For query t and key j let P be the weight, f its dropout factor, D_t = dout_t . out_t:
//   dv_j = sum_t f P dout_t
//   dS   = P (f dout_t . v_j - D_t)           gradient of the scaled score
//   dq_t = scale sum_j dS k_j,    dk_j = scale sum_t dS q_t
namespace zg::cuda {
namespace {

constexpr int block_rows = mma_warps * 16;

/// The two numbers of a query t that backward needs besides its rows.
struct Query {
  float log_sum;  ///< log_sum in base 2: weights are computed as powers of 2
  float dot;      ///< D_t
};
__device__ inline Query query_of(const AttentionCall& a, const HeadBlock& head, int64_t t) {
  if (t >= a.shape.T) return {0.0f, 0.0f};
  const int64_t row = (head.b * a.shape.H + head.h) * a.shape.T + t;
  return {a.log_sum[row] * log2_e, a.row_dots[row]};
}

/// For query t and key j replaces `product`, q_t . k_j, by f P and `dproduct`, dout_t . v_j, by dS.
template <Extras extras>
__device__ inline void differentiate(const AttentionCall& a, const HeadBlock& head, int64_t t,
                                     int64_t j, const Query& query, bool hidden, float& product,
                                     float& dproduct) {
  float weight, factor = 1.0f;
  if constexpr (extras == Extras::all) {
    const float score = hidden ? -INFINITY : score_of(a, head, t, j, product);
    weight = exp2_fast(__fmaf_rn(score, log2_e, -query.log_sum));
    factor = hidden ? 0.0f : dropout_factor(a.shape, head, t, j);
  } else {
    const float score = hidden ? -INFINITY : product;
    weight = exp2_fast(__fmaf_rn(score, a.shape.scale * log2_e, -query.log_sum));
  }
  product = weight * factor;
  dproduct = weight * (factor * dproduct - query.dot);
}

template <class T, int width, int step, Extras extras>
__global__ void __launch_bounds__(mma_threads, 1)
    backward_keys(AttentionCall a, int64_t blocks_per_head) {
  constexpr int step_bytes = bytes_of_rows<width>(step),
                resident_bytes = bytes_of_rows<width>(block_rows);
  const AttentionShape& s = a.shape;
  const HeadBlock head(s, blocks_per_head);
  const T* const q_head = head_data<const T>(a.q, s.q, head);
  const T* const dout_head = head_data<const T>(a.dout, s.out, head);
  const int D = static_cast<int>(s.D);
  const SharedAddress k = dynamic_address(), v = k + resident_bytes, q = v + resident_bytes,
                      dout = q + 2 * step_bytes;
  const int warp_row = static_cast<int>(threadIdx.x) / lanes * 16;
  const int64_t j0 = head.block * block_rows, first = first_query(s, j0) / step * step;
  const auto load_step = [&](int64_t t0) {
    const int stage = static_cast<int>(t0 / step % 2);
    load_rows_async<width, step>(q + stage * step_bytes, q_head, s.q.token, t0, s.T, D);
    load_rows_async<width, step>(dout + stage * step_bytes, dout_head, s.out.token, t0, s.T, D);
  };
  load_rows_async<width, block_rows>(k, head_data<const T>(a.k, s.k, head), s.k.token, j0, s.keys,
                                     D);
  load_rows_async<width, block_rows>(v, head_data<const T>(a.v, s.v, head), s.v.token, j0, s.keys,
                                     D);
  load_step(first);
  commit_copies();
  const float slope = slope_of_products<extras>(a, head);
  Accumulators<1, width> dk = {}, dv = {};
  for (int64_t t0 = first; t0 < s.T; t0 += step) {
    if (t0 + step < s.T) load_step(t0 + step);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const int stage = static_cast<int>(t0 / step % 2);
    Accumulators<1, step> products, dproducts;
    multiply_rows<T, width>(products, k, warp_row, q + stage * step_bytes);
    multiply_rows<T, width>(dproducts, v, warp_row, dout + stage * step_bytes);
    if constexpr (extras == Extras::alibi)  // here rows are keys and columns are queries
      add_alibi(products, -slope, t0 + s.offset - (j0 + warp_row));
    const Mask mask(s, t0, j0 + warp_row);
    const bool masked = mask.hides_some(step, 16);
#pragma unroll
    for (int n = 0; n < step / 8; ++n) {
      const Query queries[2] = {query_of(a, head, t0 + accumulator_column(n, 0)),
                                query_of(a, head, t0 + accumulator_column(n, 1))};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int t = accumulator_column(n, e), j = accumulator_row(0, e);
        differentiate<extras>(a, head, t0 + t, j0 + warp_row + j, queries[e % 2],
                              masked && mask.hides(t, j), products.values[0][n][e],
                              dproducts.values[0][n][e]);
      }
    }
    add_rows<T, width>(dv, products, dout + stage * step_bytes);
    add_rows<T, width>(dk, dproducts, q + stage * step_bytes);
    __syncthreads();  // all warps have read this step's rows
  }
  dk.scale(s.scale);
  write_rows<width>(head_data<T>(a.dk, s.k, head), s.k.token, j0 + warp_row, s.keys, D, dk);
  write_rows<width>(head_data<T>(a.dv, s.v, head), s.v.token, j0 + warp_row, s.keys, D, dv);
}

template <class T, int width, int step, Extras extras>
__global__ void __launch_bounds__(mma_threads, 1)
    backward_queries(AttentionCall a, int64_t blocks_per_head) {
  constexpr int step_bytes = bytes_of_rows<width>(step),
                resident_bytes = bytes_of_rows<width>(block_rows);
  const AttentionShape& s = a.shape;
  const HeadBlock head(s, blocks_per_head);
  const T *const k_head = head_data<const T>(a.k, s.k, head),
                 *v_head = head_data<const T>(a.v, s.v, head);
  const int D = static_cast<int>(s.D);
  const SharedAddress q = dynamic_address(), dout = q + resident_bytes, k = dout + resident_bytes,
                      v = k + 2 * step_bytes;
  const int warp_row = static_cast<int>(threadIdx.x) / lanes * 16;
  const int64_t t0 = head.block * block_rows;
  const int64_t end = visible_keys(s, min(t0 + block_rows, s.T) - 1);
  const auto load_step = [&](int64_t j0) {
    const int stage = static_cast<int>(j0 / step % 2);
    load_rows_async<width, step>(k + stage * step_bytes, k_head, s.k.token, j0, s.keys, D);
    load_rows_async<width, step>(v + stage * step_bytes, v_head, s.v.token, j0, s.keys, D);
  };
  load_rows_async<width, block_rows>(q, head_data<const T>(a.q, s.q, head), s.q.token, t0, s.T, D);
  load_rows_async<width, block_rows>(dout, head_data<const T>(a.dout, s.out, head), s.out.token, t0,
                                     s.T, D);
  load_step(0);
  commit_copies();
  const Query queries[2] = {query_of(a, head, t0 + warp_row + accumulator_row(0, 0)),
                            query_of(a, head, t0 + warp_row + accumulator_row(0, 2))};
  const float slope = slope_of_products<extras>(a, head);
  Accumulators<1, width> dq = {};
  for (int64_t j0 = 0; j0 < end; j0 += step) {
    if (j0 + step < end) load_step(j0 + step);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const int stage = static_cast<int>(j0 / step % 2);
    Accumulators<1, step> products, dproducts;
    multiply_rows<T, width>(products, q, warp_row, k + stage * step_bytes);
    multiply_rows<T, width>(dproducts, dout, warp_row, v + stage * step_bytes);
    if constexpr (extras == Extras::alibi)
      add_alibi(products, slope, j0 - (t0 + warp_row + s.offset));
    const Mask mask(s, t0 + warp_row, j0);
    const bool masked = mask.hides_some(16, step);
    products.for_each([&](int i, int n, int e) {
      const int t = accumulator_row(i, e), j = accumulator_column(n, e);
      differentiate<extras>(a, head, t0 + warp_row + t, j0 + j, queries[e / 2],
                            masked && mask.hides(t, j), products.values[i][n][e],
                            dproducts.values[i][n][e]);
    });
    add_rows<T, width>(dq, dproducts, k + stage * step_bytes);
    __syncthreads();  // all warps have read this step's rows
  }
  dq.scale(s.scale);
  write_rows<width>(head_data<T>(a.dq, s.q, head), s.q.token, t0 + warp_row, s.T, D, dq);
}

template <class T, int width, Extras extras>
void run(const AttentionCall& call, Stream& stream) {
  // With 128 columns a step has only 16 queries: dk and dv need most of the registers.
  constexpr int queries = width == 64 ? 64 : 16, keys = 64;
  const auto start = [&](auto kernel, int64_t tokens, int step) {
    const int64_t blocks_per_head = (tokens + block_rows - 1) / block_rows;
    launch("attention_backward", kernel,
           {blocks_for(call.shape.B * call.shape.H * blocks_per_head, 1), dim3(mma_threads),
            static_cast<size_t>(bytes_of_rows<width>(2 * block_rows + 4 * step))},
           stream, call, blocks_per_head);
  };
  start(backward_keys<T, width, queries, extras>, call.shape.keys, queries);
  start(backward_queries<T, width, keys, extras>, call.shape.T, keys);
}

}  // namespace

void mma_attention_backward(DType dtype, const AttentionCall& call, Stream& stream) {
  const auto with = [&]<class T>(T) {
    with_extras(call, [&](auto with) {
      constexpr Extras extras = decltype(with)::value;
      if (call.shape.D <= 64)
        run<T, 64, extras>(call, stream);
      else
        run<T, 128, extras>(call, stream);
    });
  };
  dtype == DType::bf16 ? with(bf16()) : with(f16());
}

}  // namespace zg::cuda
