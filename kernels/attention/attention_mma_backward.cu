#include "zerograd/kernels/attention/attention_mma.cuh"

// Two kernels, so that each gradient is written by the one block that makes it: dk and dv by blocks
// of keys, dq by blocks of queries. Both make the weights again from log_sum.
namespace zg::cuda {
namespace {

constexpr int own_rows = mma_warps * 16;

/// Two numbers of a query: its log-sum-exp for powers of two, and D_t = dout_t . out_t.
struct Query {
  float log_sum, dot;
};
__device__ inline Query query_of(const AttentionCall& a, const HeadPart& at, int64_t t) {
  if (t >= a.shape.T) return {0.0f, 0.0f};
  const int64_t row = (at.b * a.shape.H + at.h) * a.shape.T + t;
  return {a.log_sum[row] * log2_e, a.row_dots[row]};
}

/// Turns q . k of query t and key j into the weight with its dropout factor, f P, and dout . v into
/// the gradient of the score, P (f dout . v - D_t), but for the scale.
template <Extras extras>
__device__ inline void differentiate(const AttentionCall& a, const HeadPart& at, int64_t t,
                                     int64_t j, const Query& query, bool hidden, float& product,
                                     float& dproduct) {
  float weight, factor = 1.0f;
  if constexpr (extras == Extras::all) {
    const float score = hidden ? -INFINITY : score_of(a, at, t, j, product);
    weight = exp2_fast(__fmaf_rn(score, log2_e, -query.log_sum));
    factor = hidden ? 0.0f : dropout_factor(a.shape, at, t, j);
  } else {
    const float score = hidden ? -INFINITY : product;
    weight = exp2_fast(__fmaf_rn(score, a.shape.scale * log2_e, -query.log_sum));
  }
  product = weight * factor;
  dproduct = weight * (factor * dproduct - query.dot);
}

template <class T, int width, int step, Extras extras>
__global__ void __launch_bounds__(mma_threads, 1) backward_keys(AttentionCall a, int64_t parts) {
  constexpr int matrix = bytes_of_rows<width>(step), own = bytes_of_rows<width>(own_rows);
  const AttentionShape& s = a.shape;
  const HeadPart at(s, parts);
  const T* const q_head = head_of<const T>(a.q, s.q, at);
  const T* const dout_head = head_of<const T>(a.dout, s.out, at);
  const int D = static_cast<int>(s.D);
  const SharedAddress k = dynamic_address(), v = k + own, q = v + own, dout = q + 2 * matrix;
  const int row = static_cast<int>(threadIdx.x) / lanes * 16;
  const int64_t j0 = at.part * own_rows, first = first_query(s, j0) / step * step;
  const auto bring = [&](int64_t t0) {
    const int stage = static_cast<int>(t0 / step % 2);
    bring_rows<width, step>(q + stage * matrix, q_head, s.q.token, t0, s.T, D);
    bring_rows<width, step>(dout + stage * matrix, dout_head, s.out.token, t0, s.T, D);
  };
  bring_rows<width, own_rows>(k, head_of<const T>(a.k, s.k, at), s.k.token, j0, s.keys, D);
  bring_rows<width, own_rows>(v, head_of<const T>(a.v, s.v, at), s.v.token, j0, s.keys, D);
  bring(first);
  commit_copies();
  const float slope = slope_of_products<extras>(a, at);
  Products<1, width> dk = {}, dv = {};
  for (int64_t t0 = first; t0 < s.T; t0 += step) {
    if (t0 + step < s.T) bring(t0 + step);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const int stage = static_cast<int>(t0 / step % 2);
    Products<1, step> products, dproducts;
    multiply_rows<T, width>(products, k, row, q + stage * matrix);
    multiply_rows<T, width>(dproducts, v, row, dout + stage * matrix);
    if constexpr (extras == Extras::alibi)  // rows are keys, columns queries
      add_alibi(products, -slope, t0 + s.offset - (j0 + row));
    const Mask mask(s, t0, j0 + row);
    const bool masked = mask.hides_some(step, 16);
#pragma unroll
    for (int n = 0; n < step / 8; ++n) {
      const Query queries[2] = {query_of(a, at, t0 + column_of(n, 0)),
                                query_of(a, at, t0 + column_of(n, 1))};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int t = column_of(n, e), j = row_of(0, e);
        differentiate<extras>(a, at, t0 + t, j0 + row + j, queries[e % 2],
                              masked && mask.hides(t, j), products.of[0][n][e],
                              dproducts.of[0][n][e]);
      }
    }
    add_rows<T, width>(dv, products, dout + stage * matrix);
    add_rows<T, width>(dk, dproducts, q + stage * matrix);
    __syncthreads();  // the matrices have been read
  }
  dk.scale(s.scale);
  write_rows<width>(head_of<T>(a.dk, s.k, at), s.k.token, j0 + row, s.keys, D, dk);
  write_rows<width>(head_of<T>(a.dv, s.v, at), s.v.token, j0 + row, s.keys, D, dv);
}

template <class T, int width, int step, Extras extras>
__global__ void __launch_bounds__(mma_threads, 1) backward_queries(AttentionCall a, int64_t parts) {
  constexpr int matrix = bytes_of_rows<width>(step), own = bytes_of_rows<width>(own_rows);
  const AttentionShape& s = a.shape;
  const HeadPart at(s, parts);
  const T *const k_head = head_of<const T>(a.k, s.k, at), *v_head = head_of<const T>(a.v, s.v, at);
  const int D = static_cast<int>(s.D);
  const SharedAddress q = dynamic_address(), dout = q + own, k = dout + own, v = k + 2 * matrix;
  const int row = static_cast<int>(threadIdx.x) / lanes * 16;
  const int64_t t0 = at.part * own_rows;
  const int64_t end = visible_keys(s, min(t0 + own_rows, s.T) - 1);
  const auto bring = [&](int64_t j0) {
    const int stage = static_cast<int>(j0 / step % 2);
    bring_rows<width, step>(k + stage * matrix, k_head, s.k.token, j0, s.keys, D);
    bring_rows<width, step>(v + stage * matrix, v_head, s.v.token, j0, s.keys, D);
  };
  bring_rows<width, own_rows>(q, head_of<const T>(a.q, s.q, at), s.q.token, t0, s.T, D);
  bring_rows<width, own_rows>(dout, head_of<const T>(a.dout, s.out, at), s.out.token, t0, s.T, D);
  bring(0);
  commit_copies();
  const Query queries[2] = {query_of(a, at, t0 + row + row_of(0, 0)),
                            query_of(a, at, t0 + row + row_of(0, 2))};
  const float slope = slope_of_products<extras>(a, at);
  Products<1, width> dq = {};
  for (int64_t j0 = 0; j0 < end; j0 += step) {
    if (j0 + step < end) bring(j0 + step);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const int stage = static_cast<int>(j0 / step % 2);
    Products<1, step> products, dproducts;
    multiply_rows<T, width>(products, q, row, k + stage * matrix);
    multiply_rows<T, width>(dproducts, dout, row, v + stage * matrix);
    if constexpr (extras == Extras::alibi) add_alibi(products, slope, j0 - (t0 + row + s.offset));
    const Mask mask(s, t0 + row, j0);
    const bool masked = mask.hides_some(16, step);
    products.for_each([&](int i, int n, int e) {
      const int t = row_of(i, e), j = column_of(n, e);
      differentiate<extras>(a, at, t0 + row + t, j0 + j, queries[e / 2], masked && mask.hides(t, j),
                            products.of[i][n][e], dproducts.of[i][n][e]);
    });
    add_rows<T, width>(dq, dproducts, k + stage * matrix);
    __syncthreads();  // the matrices have been read
  }
  dq.scale(s.scale);
  write_rows<width>(head_of<T>(a.dq, s.q, at), s.q.token, t0 + row, s.T, D, dq);
}

template <class T, int width, Extras extras>
void run(const AttentionCall& call, Stream& stream) {
  // The queries of a step are fewer where rows are long: the sums of dk and dv take the registers.
  constexpr int queries = width == 64 ? 64 : 16, keys = 64;
  const auto start = [&](auto kernel, int64_t tokens, int step) {
    const int64_t parts = (tokens + own_rows - 1) / own_rows;
    launch("attention_backward", kernel,
           {blocks_for(call.shape.B * call.shape.H * parts, 1), dim3(mma_threads),
            static_cast<size_t>(bytes_of_rows<width>(2 * own_rows + 4 * step))},
           stream, call, parts);
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
