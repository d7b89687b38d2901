#include "zerograd/kernels/attention/attention_mma.cuh"

namespace zg::cuda {
namespace {

// The forward pass on the tensor cores: Dao 2023, arXiv:2307.08691, algorithm 1. One block of 4
// warps computes the outputs of 64 or 128 queries of one head, 16 * `tiles` queries a warp. It
// iterates over the keys that its last query sees, 64 at a time; see attention_mma.cuh.
constexpr int keys_per_step = 64;

/// With Extras::all the scores get scale, ALiBi and bias before the softmax. With other Extras the
/// softmax multiplies the products by the scale.
template <class T, int width, int tiles, Extras extras>
__global__ void __launch_bounds__(mma_threads, 1)
    forward(AttentionCall a, int64_t blocks_per_head) {
  constexpr int block_rows = mma_warps * 16 * tiles,
                step_bytes = bytes_of_rows<width>(keys_per_step);
  const AttentionShape& s = a.shape;
  const HeadBlock head(s, blocks_per_head), key_head = head.with_head(head.h / s.group());
  const T* const k_head = head_data<const T>(a.k, s.k, key_head);
  const T* const v_head = head_data<const T>(a.v, s.v, key_head);
  const int D = static_cast<int>(s.D);
  const SharedAddress q = dynamic_address(), k = q + bytes_of_rows<width>(block_rows);
  const SharedAddress v = k + 2 * step_bytes;
  const int warp_row =
      static_cast<int>(threadIdx.x) / lanes * 16 * tiles;  // first row of the warp within the block
  const float slope = slope_of_products<extras>(a, head);
  constexpr bool all = extras == Extras::all;
  for (ResidentRows resident(a, head, block_rows, s.T); resident.next();) {
    const VisibleKeys keys(a, head, resident);
    const int64_t t0 = resident.begin, begin = keys.first_step(t0, keys_per_step);
    const int64_t end = keys.end(min(t0 + block_rows, resident.end) - 1);
    const auto stage_of = [&](int64_t j0) {
      return static_cast<int>((j0 - begin) / keys_per_step % 2);
    };
    const auto load_step = [&](int64_t j0) {
      const int bytes = stage_of(j0) * step_bytes;
      load_rows_async<width, keys_per_step>(k + bytes, k_head, s.k.token, j0, keys.limit, D);
      load_rows_async<width, keys_per_step>(v + bytes, v_head, s.v.token, j0, keys.limit, D);
    };
    wait_for_copies<0>();  // copies of earlier resident rows that had no step
    __syncthreads();
    load_rows_async<width, block_rows>(q, head_data<const T>(a.q, s.q, head), s.q.token, t0,
                                       resident.end, D);
    load_step(begin);
    commit_copies();
    Accumulators<tiles, width> out = {};
    OnlineSoftmax<tiles> softmax(all ? log2_e : s.scale * log2_e);
    for (int64_t j0 = begin; j0 < end; j0 += keys_per_step) {
      if (j0 + keys_per_step < end) load_step(j0 + keys_per_step);
      commit_copies();
      wait_for_copies<1>();
      __syncthreads();
      const int bytes = stage_of(j0) * step_bytes;
      Accumulators<tiles, keys_per_step> scores;
      multiply_rows<T, width>(scores, q, warp_row, k + bytes);
      if constexpr (extras == Extras::alibi)
        add_alibi(scores, slope, j0 - (t0 + warp_row + s.offset));
      const Mask mask(keys, resident.end, t0 + warp_row, j0);
      if (all || mask.hides_some(16 * tiles, keys_per_step))
        scores.for_each([&](int i, int n, int e) {
          float& score = scores.values[i][n][e];
          const int t = accumulator_row(i, e), j = accumulator_column(n, e);
          if (mask.hides(t, j))
            score = -INFINITY;
          else if constexpr (all)
            score = score_of(a, head, t0 + warp_row + t, j0 + j, score);
        });
      softmax.add(scores);
      softmax.rescale(out);
      if constexpr (all)
        scores.for_each([&](int i, int n, int e) {
          scores.values[i][n][e] *= dropout_factor(s, head, t0 + warp_row + accumulator_row(i, e),
                                                   j0 + accumulator_column(n, e));
        });
      add_rows<T, width>(out, scores, v + bytes);
      __syncthreads();  // all warps have read this step's k and v
    }
    softmax.finish(out, a, head, t0 + warp_row, resident.end);
    write_rows<width>(head_data<T>(a.out, s.out, head), s.out.token, t0 + warp_row, resident.end, D,
                      out);
  }
}

template <class T, int width, int tiles, Extras extras>
void run(const AttentionCall& call, Stream& stream) {
  constexpr int block_rows = mma_warps * 16 * tiles;
  const int64_t blocks_per_head = (call.shape.T + block_rows - 1) / block_rows;
  launch(forward_work("mma_forward", dtype_of<T>, call), forward<T, width, tiles, extras>,
         {blocks_for(call.shape.B * call.shape.H * blocks_per_head, 1), dim3(mma_threads),
          size_t{bytes_of_rows<width>(block_rows + 4 * keys_per_step)}},
         stream, call, blocks_per_head);
}

}  // namespace

void mma_attention_forward(DType dtype, const AttentionCall& call, Stream& stream) {
  const auto with = [&]<class T>(T) {
    with_extras(call, [&](auto with) {
      constexpr Extras extras = decltype(with)::value;
      if (call.shape.D <= 64)
        run<T, 64, extras == Extras::all ? 1 : 2, extras>(call, stream);
      else
        run<T, 128, 1, extras>(call, stream);
    });
  };
  dtype == DType::bf16 ? with(bf16()) : with(f16());
}

}  // namespace zg::cuda
