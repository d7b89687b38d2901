#include "zerograd/kernels/attention/attention_tiles_simd.h"

// The backward pass on vectors of f32: Dao 2023, arXiv:2307.08691, algorithm 2. One task computes
// one head of keys and the query heads that read it: the outer loop is over blocks of keys, the
// inner loops over these heads and over blocks of their queries. With P the softmax, f the dropout
// factors and D_t = dout_t . out_t:
//   dv = (f P)^T dout          dscores = P (f dout v^T - D)
//   dq = scale dscores k       dk = scale dscores^T q
namespace zg::cpu::ZG_ISA {
namespace {

// Blocks are large enough that adding to dk, dv (queries) and dq (keys) costs little compared with
// the products. The data of a block of keys, 440 KiB at head size 64, stays in the L2 cache.
constexpr int64_t key_block = 256;
constexpr int64_t query_block = 48;  // a multiple of tile_rows

struct Scratch {
  float *keys_transposed, *values_transposed, *keys;  // packed
  float *query, *dout, *weights, *dscores;            // a block of queries
  float *dk, *dv;                                     // for one block of keys
  float *dq, *mean;                                   // for every query of the group's heads
  float* factors;
  int64_t columns;             // columns of dq, dk, dv
  int64_t dq_head, mean_head;  // elements from one head's dq, mean to the next
  int64_t bytes;

  inline Scratch(std::byte* data, const AttentionShape& s) {
    ScratchAllocator scratch{data};
    const int64_t n = smaller(s.keys, key_block), padded = round_up(n, panel_columns);
    const int64_t rows = round_up(smaller(s.T, query_block), tile_rows);
    columns = round_up(s.D, panel_columns);
    keys_transposed = scratch.take(padded * s.D);
    values_transposed = scratch.take(padded * s.D);
    keys = scratch.take(n * columns);
    query = scratch.take(rows * row_stride);
    dout = scratch.take(rows * row_stride);
    weights = scratch.take(rows * row_stride);
    dscores = scratch.take(rows * row_stride);
    dk = scratch.take(round_up(n, tile_rows) * columns);
    dv = scratch.take(round_up(n, tile_rows) * columns);
    dq_head = round_up(s.T, tile_rows) * columns;
    mean_head = s.T;
    dq = scratch.take(s.group() * dq_head);
    mean = scratch.take(s.group() * mean_head);
    factors = scratch.take(BlockFactors::room(query_block, key_block));
    bytes = round_up(scratch.used, 256);
  }
};

int64_t scratch_bytes(const AttentionShape& s) { return Scratch(nullptr, s).bytes; }
int64_t tasks(const AttentionShape& s) { return s.B * s.key_heads(); }

struct Block {
  int64_t b, h, member;  // of the group
  int64_t t0, rows;      // queries
  int64_t j0, n;         // keys that are packed
};

template <class T>
inline float dot(const T* x, const T* y, int64_t D) {
  Vec sum = 0.0;
  for_vectors(
      D, [&](int64_t d, auto count) { sum = fma(load(x + d, count), load(y + d, count), sum); });
  return reduce_add(sum);
}

/// For one query: replaces n scores by weight * factor, and the gradients of the weights by the
/// gradients of the scores. Elements from n to `end` become 0. `mean` is D_t.
inline void differentiate(float* scores, float* gradients, int64_t n, int64_t end,
                          const float* bias, const float* factors, float log_sum, float mean) {
  const Vec offset = log_sum, centre = mean;
  for_vectors(n, [&](int64_t j, auto count) {
    Vec score = load(scores + j);
    if (bias) score = score + load(bias + j, count);
    const Vec weight = keep(exp(score - offset), count);
    const Vec factor = factors ? load(factors + j, count) : 1.0;
    store(scores + j, weight * factor);
    store(gradients + j, weight * (load(gradients + j) * factor - centre));
  });
  const int64_t done = round_up(n, Vec::lanes);
  hide(scores + done, end - done);
  hide(gradients + done, end - done);
}

/// sums[j] += sum over the block's queries of left[query, j] * rows[query], for the first `visible`
/// keys.
inline void add_transposed(float* sums, const float* left, const float* rows, int64_t visible,
                           const Block& block, const Scratch& scratch, int64_t D) {
  for (int64_t j = 0; j < visible; j += tile_rows)
    multiply<Left::columns, Store::add>(block.rows, D, left + j, in_rows(rows),
                                        sums + j * scratch.columns, scratch.columns);
}

/// Adds the block's queries and keys to dq, dk and dv.
template <class T>
inline void process_block(const AttentionCall& call, const Scratch& scratch, const Block& block) {
  const AttentionShape& s = call.shape;
  const auto [b, h, member, t0, rows, j0, n] = block;
  const int64_t end = smaller(n, visible_keys(s, t0 + rows - 1) - j0);
  if (end <= 0) return;
  load_block<T>(scratch.query, call.q, s.q, b, h, t0, rows, s.D, static_cast<float>(call.scale));
  load_block<T>(scratch.dout, call.dout, s.out, b, h, t0, rows, s.D, 1.0f);
  const int64_t columns = round_up(end, Vec::lanes), D = round_up(s.D, Vec::lanes);
  for (int64_t r = 0; r < rows; r += tile_rows) {
    const int64_t row = r * row_stride;
    multiply<Left::rows, Store::write>(s.D, columns, scratch.query + row,
                                       packed(scratch.keys_transposed, s.D), scratch.weights + row,
                                       row_stride);
    multiply<Left::rows, Store::write>(s.D, columns, scratch.dout + row,
                                       packed(scratch.values_transposed, s.D),
                                       scratch.dscores + row, row_stride);
  }
  const BlockFactors factors(call, scratch.factors, b, h, t0, rows);
  const float* mean = scratch.mean + member * scratch.mean_head;
  for (int64_t r = 0; r < rows; ++r) {
    const float log_sum = *log_sum_at<float>(call, b, h, t0 + r);
    // A query whose keys are all hidden has no weights.
    const Visible visible(s, t0 + r, j0, log_sum == -__builtin_inff() ? 0 : end);
    const int64_t j = j0 + visible.begin;
    const float* bias = bias_row<float>(call, h, t0 + r);
    float* const scores = scratch.weights + r * row_stride;
    float* const dscores = scratch.dscores + r * row_stride;
    hide(scores, visible.begin);
    hide(dscores, visible.begin);
    add_alibi(call, scores + visible.begin, h, t0 + r, j, visible.count());
    differentiate(scores + visible.begin, dscores + visible.begin, visible.count(),
                  round_up(end, tile_rows) - visible.begin, bias ? bias + j : nullptr,
                  factors.row(r, j, visible.count()), log_sum, mean[t0 + r]);
  }
  add_transposed(scratch.dv, scratch.weights, scratch.dout, end, block, scratch, D);
  add_transposed(scratch.dk, scratch.dscores, scratch.query, end, block, scratch, D);
  float* const dq = scratch.dq + member * scratch.dq_head;
  for (int64_t r = 0; r < rows; r += tile_rows)
    multiply<Left::rows, Store::add>(end, D, scratch.dscores + r * row_stride,
                                     packed(scratch.keys, n), dq + (t0 + r) * scratch.columns,
                                     scratch.columns);
}

template <class T>
inline void store_rows(void* data, const HeadLayout& layout, int64_t b, int64_t h, int64_t begin,
                       int64_t n, const float* rows, int64_t columns, int64_t D, float scale) {
  for (int64_t i = 0; i < n; ++i)
    store_row(at<T>(data, layout, b, h, begin + i), rows + i * columns, D, scale);
}

/// The gradients of one head of keys and of the query heads that read it.
template <class T>
void process_group(const AttentionCall& call, int64_t b, int64_t key_head, std::byte* data) {
  const AttentionShape& s = call.shape;
  const Scratch scratch(data, s);
  const int64_t group = s.group(), first = key_head * group;
  for (int64_t i = 0; i < group; ++i)
    for (int64_t t = 0; t < s.T; ++t)
      scratch.mean[i * scratch.mean_head + t] =
          dot(at<const T>(call.dout, s.out, b, first + i, t),
              at<const T>(call.out, s.out, b, first + i, t), s.D);
  zero_row(scratch.dq, group * scratch.dq_head);
  for (int64_t j0 = 0; j0 < s.keys; j0 += key_block) {
    const int64_t n = smaller(key_block, s.keys - j0);
    const T* k = at<const T>(call.k, s.k, b, key_head, j0);
    pack_transposed(scratch.keys_transposed, k, s.k.token, n, s.D);
    pack_rows(scratch.keys, k, s.k.token, n, s.D);
    pack_transposed(scratch.values_transposed, at<const T>(call.v, s.v, b, key_head, j0), s.v.token,
                    n, s.D);
    zero_row(scratch.dk, round_up(n, tile_rows) * scratch.columns);
    zero_row(scratch.dv, round_up(n, tile_rows) * scratch.columns);
    // With a causal mask earlier queries see none of these keys, with a window later ones neither.
    const int64_t begin = s.causal ? larger(0, j0 - s.offset) / tile_rows * tile_rows : 0;
    const int64_t end = query_end(s, j0 + n);
    for (int64_t i = 0; i < group; ++i)  // dk and dv are sums in rising heads
      for (int64_t t0 = begin; t0 < end; t0 += query_block)
        process_block<T>(call, scratch,
                         {b, first + i, i, t0, smaller(query_block, s.T - t0), j0, n});
    store_rows<T>(call.dk, s.k, b, key_head, j0, n, scratch.dk, scratch.columns, s.D, 1.0f);
    store_rows<T>(call.dv, s.v, b, key_head, j0, n, scratch.dv, scratch.columns, s.D, 1.0f);
  }
  for (int64_t i = 0; i < group; ++i)
    store_rows<T>(call.dq, s.q, b, first + i, 0, s.T, scratch.dq + i * scratch.dq_head,
                  scratch.columns, s.D, static_cast<float>(call.scale));
  if (call.hidden_keys == 0) return;
  zero_row(scratch.dk, scratch.columns);
  for (int64_t j = s.keys; j < s.keys + call.hidden_keys; ++j) {
    store_rows<T>(call.dk, s.k, b, key_head, j, 1, scratch.dk, scratch.columns, s.D, 1.0f);
    store_rows<T>(call.dv, s.v, b, key_head, j, 1, scratch.dk, scratch.columns, s.D, 1.0f);
  }
}

template <class T>
void backward(const AttentionCall& call, int64_t task, std::byte* data) {
  const int64_t b = task / call.shape.key_heads(), key_head = task % call.shape.key_heads();
  for_documents(call, b,
                [&](const AttentionCall& view) { process_group<T>(view, b, key_head, data); });
}

template <class T>
constexpr AttentionCode code = {tasks, scratch_bytes, backward<T>};

}  // namespace

extern const AttentionTable attention_backward_table;
const AttentionTable attention_backward_table = {{{}, code<float>, code<bf16>, code<f16>}};

}  // namespace zg::cpu::ZG_ISA
