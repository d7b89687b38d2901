#include "zerograd/kernels/attention/attention_mma.cuh"

// The backward pass on the tensor cores: Dao 2023, arXiv:2307.08691, algorithm 2, cut into two
// kernels. backward_queries runs first and computes dq and D, one block for 64 queries;
// backward_keys computes dk and dv, one block for 64 keys and all query heads that read them, in
// rising heads. So every gradient is written by one block in a fixed order, without atomics, and
// has the same bits in every run. Both kernels compute the weights again, from log_sum.
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
__device__ inline Query query_of(const AttentionCall& a, const HeadBlock& head, int64_t t,
                                 int64_t query_end) {
  return {log_sum_of(a, head, t, query_end),
          t < query_end ? a.row_dots[row_index(a, head, t)] : 0.0f};
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
  const HeadBlock key_head(s.key_heads(), blocks_per_head);
  const int D = static_cast<int>(s.D);
  const SharedAddress k = dynamic_address(), v = k + resident_bytes, q = v + resident_bytes,
                      dout = q + 2 * step_bytes;
  const int warp_row = static_cast<int>(threadIdx.x) / lanes * 16;
  for (ResidentRows resident(a, key_head, block_rows, s.keys); resident.next();) {
    const VisibleKeys keys(a, key_head, resident);
    const int64_t j0 = resident.begin, key_end = min(keys.limit, resident.end);
    const int64_t queries = a.starts ? resident.end : s.T, begin = keys.first_query_step(j0, step);
    const int64_t end = keys.query_end(j0, min(j0 + block_rows, resident.end), queries);
    wait_for_copies<0>();  // copies of earlier resident rows that had no step
    __syncthreads();
    load_rows_async<width, block_rows>(k, head_data<const T>(a.k, s.k, key_head), s.k.token, j0,
                                       key_end, D);
    load_rows_async<width, block_rows>(v, head_data<const T>(a.v, s.v, key_head), s.v.token, j0,
                                       key_end, D);
    commit_copies();
    Accumulators<1, width> dk = {}, dv = {};
    const int64_t head_end = begin < end ? (key_head.h + 1) * s.group() : 0;
    for (int64_t h = key_head.h * s.group(); h < head_end; ++h) {
      const HeadBlock head = key_head.with_head(h);
      const T* const q_head = head_data<const T>(a.q, s.q, head);
      const T* const dout_head = head_data<const T>(a.dout, s.out, head);
      const float slope = slope_of_products<extras>(a, head);
      const auto stage_of = [&](int64_t t0) { return static_cast<int>((t0 - begin) / step % 2); };
      const auto load_step = [&](int64_t t0) {
        const int bytes = stage_of(t0) * step_bytes;
        load_rows_async<width, step>(q + bytes, q_head, s.q.token, t0, queries, D);
        load_rows_async<width, step>(dout + bytes, dout_head, s.out.token, t0, queries, D);
      };
      load_step(begin);
      commit_copies();
      for (int64_t t0 = begin; t0 < end; t0 += step) {
        if (t0 + step < end) load_step(t0 + step);
        commit_copies();
        wait_for_copies<1>();
        __syncthreads();
        const int bytes = stage_of(t0) * step_bytes;
        Accumulators<1, step> products, dproducts;
        constexpr int unrolled = width == 64 ? 4 : 2;  // more would need more registers
        multiply_rows<T, width, unrolled>(products, k, warp_row, q + bytes);
        multiply_rows<T, width, unrolled>(dproducts, v, warp_row, dout + bytes);
        if constexpr (extras == Extras::alibi)  // here rows are keys and columns are queries
          add_alibi(products, -slope, t0 + s.offset - (j0 + warp_row));
        const Mask mask(keys, queries, t0, j0 + warp_row);
        const bool masked = mask.hides_some(step, 16);
#pragma unroll
        for (int n = 0; n < step / 8; ++n) {
          const Query pair[2] = {query_of(a, head, t0 + accumulator_column(n, 0), queries),
                                 query_of(a, head, t0 + accumulator_column(n, 1), queries)};
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int t = accumulator_column(n, e), j = accumulator_row(0, e);
            differentiate<extras>(a, head, t0 + t, j0 + warp_row + j, pair[e % 2],
                                  masked && mask.hides(t, j), products.values[0][n][e],
                                  dproducts.values[0][n][e]);
          }
        }
        add_rows<T, width>(dv, products, dout + bytes);
        add_rows<T, width>(dk, dproducts, q + bytes);
        __syncthreads();  // all warps have read this step's rows
      }
    }
    dk.scale(s.scale);
    write_rows<width>(head_data<T>(a.dk, s.k, key_head), s.k.token, j0 + warp_row, resident.end, D,
                      dk);
    write_rows<width>(head_data<T>(a.dv, s.v, key_head), s.v.token, j0 + warp_row, resident.end, D,
                      dv);
  }
}

template <class T, int width, int step, Extras extras>
__global__ void __launch_bounds__(mma_threads, 1)
    backward_queries(AttentionCall a, int64_t blocks_per_head) {
  constexpr int step_bytes = bytes_of_rows<width>(step),
                resident_bytes = bytes_of_rows<width>(block_rows);
  const AttentionShape& s = a.shape;
  const HeadBlock head(s, blocks_per_head), key_head = head.with_head(head.h / s.group());
  const T* const k_head = head_data<const T>(a.k, s.k, key_head);
  const T* const v_head = head_data<const T>(a.v, s.v, key_head);
  const int D = static_cast<int>(s.D);
  const SharedAddress q = dynamic_address(), dout = q + resident_bytes, k = dout + resident_bytes,
                      v = k + 2 * step_bytes;
  const int warp_row = static_cast<int>(threadIdx.x) / lanes * 16;
  const float slope = slope_of_products<extras>(a, head);
  for (ResidentRows resident(a, head, block_rows, s.T); resident.next();) {
    const VisibleKeys keys(a, head, resident);
    const int64_t t0 = resident.begin, begin = keys.first_step(t0, step);
    const int64_t end = keys.end(min(t0 + block_rows, resident.end) - 1);
    const auto stage_of = [&](int64_t j0) { return static_cast<int>((j0 - begin) / step % 2); };
    const auto load_step = [&](int64_t j0) {
      const int bytes = stage_of(j0) * step_bytes;
      load_rows_async<width, step>(k + bytes, k_head, s.k.token, j0, keys.limit, D);
      load_rows_async<width, step>(v + bytes, v_head, s.v.token, j0, keys.limit, D);
    };
    wait_for_copies<0>();  // copies of earlier resident rows that had no step
    __syncthreads();
    load_rows_async<width, block_rows>(q, head_data<const T>(a.q, s.q, head), s.q.token, t0,
                                       resident.end, D);
    load_rows_async<width, block_rows>(dout, head_data<const T>(a.dout, s.out, head), s.out.token,
                                       t0, resident.end, D);
    load_step(begin);
    commit_copies();
    const auto query_of_half = [&](int half) {
      const int64_t t = t0 + warp_row + accumulator_row(0, 2 * half);
      return Query{log_sum_of(a, head, t, resident.end), dot_row<T>(a, head, t, resident.end)};
    };
    const Query queries[2] = {query_of_half(0), query_of_half(1)};
    Accumulators<1, width> dq = {};
    for (int64_t j0 = begin; j0 < end; j0 += step) {
      if (j0 + step < end) load_step(j0 + step);
      commit_copies();
      wait_for_copies<1>();
      __syncthreads();
      const int bytes = stage_of(j0) * step_bytes;
      Accumulators<1, step> products, dproducts;
      multiply_rows<T, width>(products, q, warp_row, k + bytes);
      multiply_rows<T, width>(dproducts, dout, warp_row, v + bytes);
      if constexpr (extras == Extras::alibi)
        add_alibi(products, slope, j0 - (t0 + warp_row + s.offset));
      const Mask mask(keys, resident.end, t0 + warp_row, j0);
      const bool masked = mask.hides_some(16, step);
      products.for_each([&](int i, int n, int e) {
        const int t = accumulator_row(i, e), j = accumulator_column(n, e);
        differentiate<extras>(a, head, t0 + warp_row + t, j0 + j, queries[e / 2],
                              masked && mask.hides(t, j), products.values[i][n][e],
                              dproducts.values[i][n][e]);
      });
      add_rows<T, width>(dq, dproducts, k + bytes);
      __syncthreads();  // all warps have read this step's rows
    }
    dq.scale(s.scale);
    write_rows<width>(head_data<T>(a.dq, s.q, head), s.q.token, t0 + warp_row, resident.end, D, dq);
  }
}

template <class T, int width, Extras extras>
void run(const AttentionCall& call, Stream& stream) {
  // The longest steps whose products fit into the registers beside the sums. dk and dv of 128
  // columns need most of the registers, and Extras::all needs many.
  constexpr bool all = extras == Extras::all;
  constexpr int queries = width == 64 && !all ? 32 : 16, keys = width == 64 || !all ? 64 : 32;
  const auto start = [&](const Work& work, auto kernel, int64_t heads, int64_t tokens, int step) {
    const int64_t blocks_per_head = (tokens + block_rows - 1) / block_rows;
    launch(work, kernel,
           {blocks_for(call.shape.B * heads * blocks_per_head, 1), dim3(mma_threads),
            static_cast<size_t>(bytes_of_rows<width>(2 * block_rows + 4 * step))},
           stream, call, blocks_per_head);
  };
  start(backward_queries_work("mma_backward_queries", dtype_of<T>, call),
        backward_queries<T, width, keys, extras>, call.shape.H, call.shape.T, keys);
  start(backward_keys_work("mma_backward_keys", dtype_of<T>, call),
        backward_keys<T, width, queries, extras>, call.shape.key_heads(), call.shape.keys, queries);
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
