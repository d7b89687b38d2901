#include "zerograd/kernels/attention/attention_mma.cuh"

namespace zg::cuda {
namespace {

constexpr int keys_of_step = 64;

/// With all extras scores are made before the softmax.
template <class T, int width, int tiles, Extras extras>
__global__ void __launch_bounds__(mma_threads, 1) forward(AttentionCall a, int64_t parts) {
  constexpr int own_rows = mma_warps * 16 * tiles, matrix = bytes_of_rows<width>(keys_of_step);
  const AttentionShape& s = a.shape;
  const HeadPart at(s, parts);
  const T *const k_head = head_of<const T>(a.k, s.k, at), *v_head = head_of<const T>(a.v, s.v, at);
  const int D = static_cast<int>(s.D);
  const SharedAddress q = dynamic_address(), k = q + bytes_of_rows<width>(own_rows);
  const SharedAddress v = k + 2 * matrix;
  const int row = static_cast<int>(threadIdx.x) / lanes * 16 * tiles;  // warp's first row
  const int64_t t0 = at.part * own_rows;
  const int64_t end = visible_keys(s, min(t0 + own_rows, s.T) - 1);
  const auto bring = [&](int64_t j0) {
    const int stage = static_cast<int>(j0 / keys_of_step % 2);
    bring_rows<width, keys_of_step>(k + stage * matrix, k_head, s.k.token, j0, s.keys, D);
    bring_rows<width, keys_of_step>(v + stage * matrix, v_head, s.v.token, j0, s.keys, D);
  };
  bring_rows<width, own_rows>(q, head_of<const T>(a.q, s.q, at), s.q.token, t0, s.T, D);
  bring(0);
  commit_copies();
  Products<tiles, width> out = {};
  const float slope = slope_of_products<extras>(a, at);
  constexpr bool all = extras == Extras::all;
  OnlineSoftmax<tiles> softmax(all ? log2_e : s.scale * log2_e);
  for (int64_t j0 = 0; j0 < end; j0 += keys_of_step) {
    if (j0 + keys_of_step < end) bring(j0 + keys_of_step);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const int stage = static_cast<int>(j0 / keys_of_step % 2);
    Products<tiles, keys_of_step> scores;
    multiply_rows<T, width>(scores, q, row, k + stage * matrix);
    if constexpr (extras == Extras::alibi) add_alibi(scores, slope, j0 - (t0 + row + s.offset));
    const Mask mask(s, t0 + row, j0);
    if (all || mask.hides_some(16 * tiles, keys_of_step))
      scores.for_each([&](int i, int n, int e) {
        float& score = scores.of[i][n][e];
        const int t = row_of(i, e), j = column_of(n, e);
        if (mask.hides(t, j))
          score = -INFINITY;
        else if constexpr (all)
          score = score_of(a, at, t0 + row + t, j0 + j, score);
      });
    softmax.add(scores);
    softmax.rescale(out);
    if constexpr (all)
      scores.for_each([&](int i, int n, int e) {
        scores.of[i][n][e] *= dropout_factor(s, at, t0 + row + row_of(i, e), j0 + column_of(n, e));
      });
    add_rows<T, width>(out, scores, v + stage * matrix);
    __syncthreads();  // the matrices have been read
  }
  softmax.finish(out, a, at, t0 + row);
  write_rows<width>(head_of<T>(a.out, s.out, at), s.out.token, t0 + row, s.T, D, out);
}

template <class T, int width, int tiles, Extras extras>
void run(const AttentionCall& call, Stream& stream) {
  constexpr int own_rows = mma_warps * 16 * tiles;
  const int64_t parts = (call.shape.T + own_rows - 1) / own_rows;
  launch("attention_forward", forward<T, width, tiles, extras>,
         {blocks_for(call.shape.B * call.shape.H * parts, 1), dim3(mma_threads),
          size_t{bytes_of_rows<width>(own_rows + 4 * keys_of_step)}},
         stream, call, parts);
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
