#include "zerograd/kernels/attention/attention_tiles_simd.h"
#include "zerograd/runtime/portable_math.h"

// The forward pass on vectors of f32: Dao 2023, arXiv:2307.08691, algorithm 1. A task computes up
// to 384 queries of one head and iterates over blocks of 256 keys. It packs a block of K and V,
// then multiplies tiles of tile_rows queries with it. For each query it keeps the largest score so
// far, the sum of the weights relative to it, and the weighted sum of v. Bound by arithmetic.
namespace zg::cpu::ZG_ISA {
namespace {

// A block of K and one of V, 64 KiB each at head size 64, stay in the L2 cache, one tile of scores
// in the L1 cache. The more queries a task has, the less the packing of a block costs per query.
constexpr int64_t key_block = 256;
constexpr int64_t task_queries = 384;
// With fewer queries most of a tile would be empty: keys are then read in place, without packing.
// The scores' sums have another order then, so this number is the same for every processor.
constexpr int64_t tiled_queries = 6;
// How far ahead rows are prefetched: about as many as are read while one comes from memory.
constexpr int64_t prefetched_keys = 32;
// Not -infinity: then a score of -infinity has weight 0, not NaN.
constexpr float lowest = -3.402823466e38f;

struct Scratch {
  float *keys, *values;        // packed: K transposed, V
  float *query, *weights;      // one tile of rows
  float *out, *largest, *sum;  // per query; sum has one value per lane
  float* factors;
  int64_t columns;  // columns of out
  int64_t bytes;

  inline Scratch(std::byte* data, const AttentionShape& s) {
    ScratchAllocator scratch{data};
    const int64_t n = round_up(smaller(s.keys, key_block), panel_columns);
    const int64_t rows = round_up(smaller(s.T, task_queries), tile_rows);
    columns = round_up(s.D, panel_columns);
    keys = scratch.take(n * s.D);
    values = scratch.take(n * columns);
    query = scratch.take(tile_rows * row_stride);
    weights = scratch.take(tile_rows * row_stride);
    out = scratch.take(rows * columns);
    largest = scratch.take(rows);
    sum = scratch.take(rows * Vec::lanes);
    factors = scratch.take(BlockFactors::room(tile_rows, key_block));
    bytes = round_up(scratch.used, 256);
  }
};

int64_t scratch_bytes(const AttentionShape& s) { return Scratch(nullptr, s).bytes; }

int64_t chunks(const AttentionShape& s) { return (s.T + task_queries - 1) / task_queries; }
int64_t tasks(const AttentionShape& s) { return s.B * s.H * chunks(s); }

/// The memory in which the results of one query accumulate.
struct Query {
  float* out;
  float* largest;
  float* sum;
};

/// Adds the bias to n scores and returns the maximum of them and of `largest`.
inline float add_bias(float* scores, int64_t n, const float* bias, float largest) {
  Vec top = largest;
  for_vectors(n, [&](int64_t j, auto count) {
    Vec score = load(scores + j);
    if (bias) store(scores + j, score = score + load(bias + j, count));
    top = max(top, keep(score, count, top));
  });
  return reduce_max(top);
}

/// Replaces n scores by exp(score - largest) * factor, and those from n to `end` by 0. Returns the
/// sum of the exponentials without the factors, one partial sum in each lane.
inline Vec exponentiate(float* scores, int64_t n, int64_t end, const float* factors,
                        float largest) {
  Vec sum = 0.0;
  const Vec top = largest;
  for_vectors(n, [&](int64_t j, auto count) {
    const Vec weight = keep(exp(load(scores + j) - top), count);
    sum = sum + weight;
    store(scores + j, factors ? weight * load(factors + j, count) : weight);
  });
  const int64_t done = round_up(n, Vec::lanes);
  hide(scores + done, end - done);
  return sum;
}

/// One step of the online softmax of a query: turns its scores of a block into weights and rescales
/// the query's earlier results if the maximum grew. Only the first n of the `end` scores are
/// visible.
inline void update_softmax(const Query& query, float* scores, int64_t n, int64_t end,
                           const float* bias, const float* factors, int64_t columns) {
  const float previous = *query.largest;
  const float largest = add_bias(scores, n, bias, previous);
  if (largest > previous && previous > lowest) {
    const Vec rescale = exp(Vec(previous - largest));
    for (int64_t d = 0; d < columns; d += Vec::lanes)
      store(query.out + d, load(query.out + d) * rescale);
    store(query.sum, load(query.sum) * rescale);
  }
  *query.largest = largest;
  store(query.sum, load(query.sum) + exponentiate(scores, n, end, factors, largest));
}

struct QueryRange {
  int64_t b, h, begin, end;  // queries
};

inline Query query_at(const Scratch& scratch, const QueryRange& range, int64_t t) {
  const int64_t r = t - range.begin;
  return {scratch.out + r * scratch.columns, scratch.largest + r, scratch.sum + r * Vec::lanes};
}

/// Adds the n packed keys from j0 on to the results of queries [t0, t0 + rows), at most one tile.
template <class T>
inline void process_block(const AttentionCall& call, const Scratch& scratch,
                          const QueryRange& range, int64_t t0, int64_t rows, int64_t j0,
                          int64_t n) {
  const AttentionShape& s = call.shape;
  const int64_t first = first_key(s, t0);  // no query of the tile sees an earlier one
  const int64_t end = smaller(n, visible_keys(s, t0 + rows - 1) - j0);
  if (end <= 0 || first >= j0 + end) return;
  load_block<T>(scratch.query, call.q, s.q, range.b, range.h, t0, rows, s.D,
                static_cast<float>(call.scale));
  multiply<Left::rows, Store::write>(s.D, round_up(end, Vec::lanes), scratch.query,
                                     packed(scratch.keys, s.D), scratch.weights, row_stride);
  const BlockFactors factors(call, scratch.factors, range.b, range.h, t0, rows);
  const int64_t D = round_up(s.D, Vec::lanes);
  for (int64_t r = 0; r < rows; ++r) {
    const Visible visible(s, t0 + r, j0, end);
    const int64_t j = j0 + visible.begin;
    const float* bias = bias_row<float>(call, range.h, t0 + r);
    float* const scores = scratch.weights + r * row_stride;
    hide(scores, visible.begin);
    add_alibi(call, scores + visible.begin, range.h, t0 + r, j, visible.count());
    update_softmax(query_at(scratch, range, t0 + r), scores + visible.begin, visible.count(),
                   end - visible.begin, bias ? bias + j : nullptr,
                   factors.row(r, j, visible.count()), D);
  }
  float* out = query_at(scratch, range, t0).out;
  const Panels values = packed(scratch.values, n);
  if (first >= j0)
    multiply<Left::rows, Store::write>(end, D, scratch.weights, values, out, scratch.columns);
  else
    multiply<Left::rows, Store::add>(end, D, scratch.weights, values, out, scratch.columns);
}

/// Keys or values of one head, `token` elements apart. `count` of them may be read.
template <class T>
struct HeadRows {
  const T* data;
  int64_t token, count, D;

  inline const T* operator[](int64_t j) const { return data + j * token; }
  /// Prefetches a row that will be read soon: the processor does not, if rows are pages apart.
  inline void prefetch_after(int64_t j) const {
    if (j + prefetched_keys >= count) return;
    for (int64_t d = 0; d < D; d += 64 / int64_t{sizeof(T)})
      __builtin_prefetch((*this)[j + prefetched_keys] + d);
  }
};

/// scores[j] = query . k_j for n keys. One transposition adds the lanes of the sums of Vec::lanes
/// keys.
template <class T>
inline void score_keys(float* scores, const float* query, const HeadRows<T>& k, int64_t n) {
  for (int64_t j = 0; j < n; j += Vec::lanes) {
    const int valid = static_cast<int>(smaller(Vec::lanes, n - j));
    Vec sum[Vec::lanes];
    for (int i = 0; i < Vec::lanes; ++i) {
      sum[i] = 0.0;
      if (i >= valid) continue;
      k.prefetch_after(j + i);
      for_vectors(k.D, [&](int64_t d, auto count) {
        sum[i] = fma(load(k[j + i] + d, count), load(query + d), sum[i]);
      });
    }
    transpose(sum);
    for (int width = Vec::lanes / 2; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) sum[i] = sum[i] + sum[i + width];
    store(scores + j, sum[0]);
  }
}

/// out += sum_j weights[j] v_j over n keys, four at a time, so that out is loaded and stored once
/// for four.
template <class T>
inline void add_values(float* out, const float* weights, const HeadRows<T>& v, int64_t n) {
  int64_t j = 0;
  for (; j + 4 <= n; j += 4) {
    for (int i = 0; i < 4; ++i) v.prefetch_after(j + i);
    for_vectors(v.D, [&](int64_t d, auto count) {
      Vec sum = load(out + d);
      for (int i = 0; i < 4; ++i) sum = fma(weights[j + i], load(v[j + i] + d, count), sum);
      store(out + d, sum);
    });
  }
  for (; j < n; ++j)
    for_vectors(v.D, [&](int64_t d, auto count) {
      store(out + d, fma(weights[j], load(v[j] + d, count), load(out + d)));
    });
}

/// Adds n keys from j0 on to query t without packing them: for generation, which has one query at a
/// time.
template <class T>
inline void process_unpacked_keys(const AttentionCall& call, const Scratch& scratch,
                                  const QueryRange& range, int64_t t, int64_t j0, int64_t n) {
  const AttentionShape& s = call.shape;
  const Visible visible(s, t, j0, n);
  if (visible.count() == 0) return;
  const int64_t j = j0 + visible.begin, key_head = range.h / s.group();
  const Query query = query_at(scratch, range, t);
  load_row(scratch.query, at<const T>(call.q, s.q, range.b, range.h, t), s.D,
           static_cast<float>(call.scale));
  const auto rows_of = [&](const void* data, const HeadLayout& layout) {
    return HeadRows<T>{at<const T>(data, layout, range.b, key_head, j), layout.token,
                       visible_keys(s, t) - j, s.D};
  };
  score_keys(scratch.weights, scratch.query, rows_of(call.k, s.k), visible.count());
  add_alibi(call, scratch.weights, range.h, t, j, visible.count());
  const BlockFactors factors(call, scratch.factors, range.b, range.h, t, 1);
  const float* bias = bias_row<float>(call, range.h, t);
  if (first_key(s, t) >= j0) zero_row(query.out, s.D);
  update_softmax(query, scratch.weights, visible.count(), visible.count(),
                 bias ? bias + j : nullptr, factors.row(0, j, visible.count()),
                 round_up(s.D, Vec::lanes));
  add_values(query.out, scratch.weights, rows_of(call.v, s.v), visible.count());
}

/// Computes the queries of the range, at most task_queries.
template <class T>
inline void process_range(const AttentionCall& call, const QueryRange& range, std::byte* data) {
  const AttentionShape& s = call.shape;
  const Scratch scratch(data, s);
  const int64_t key_head = range.h / s.group();
  for (int64_t t = range.begin; t < range.end; ++t) {
    const Query query = query_at(scratch, range, t);
    *query.largest = lowest;
    store(query.sum, Vec(0.0));
  }
  const int64_t key_begin = first_key(s, range.begin) / key_block * key_block;
  const int64_t key_end = visible_keys(s, range.end - 1);
  for (int64_t j0 = key_begin; j0 < key_end; j0 += key_block) {
    const int64_t n = smaller(key_block, key_end - j0);
    if (s.T < tiled_queries) {
      for (int64_t t = range.begin; t < range.end; ++t)
        process_unpacked_keys<T>(call, scratch, range, t, j0, n);
      continue;
    }
    pack_transposed(scratch.keys, at<const T>(call.k, s.k, range.b, key_head, j0), s.k.token, n,
                    s.D);
    pack_rows(scratch.values, at<const T>(call.v, s.v, range.b, key_head, j0), s.v.token, n, s.D);
    for (int64_t t0 = range.begin; t0 < range.end; t0 += tile_rows)
      process_block<T>(call, scratch, range, t0, smaller(tile_rows, range.end - t0), j0, n);
  }
  for (int64_t t = range.begin; t < range.end; ++t) {
    const Query query = query_at(scratch, range, t);
    const float sum = reduce_add(load(query.sum));
    const bool hidden = sum == 0.0f;  // the query sees no key; for others the sum is at least 1
    if (hidden) zero_row(query.out, s.D);
    store_row(at<T>(call.out, s.out, range.b, range.h, t), query.out, s.D,
              hidden ? 0.0f : 1.0f / sum);
    if (call.log_sum)
      *log_sum_at<float>(call, range.b, range.h, t) =
          hidden ? -__builtin_inff() : *query.largest + portable::log(sum);
  }
}

template <class T>
void forward(const AttentionCall& call, int64_t task, std::byte* data) {
  const AttentionShape& s = call.shape;
  // Later queries see more keys. Their tasks start first, so that the last task to end is a short
  // one.
  const int64_t chunk = chunks(s) - 1 - task / (s.B * s.H), head = task % (s.B * s.H);
  const int64_t b = head / s.H, h = head % s.H;
  const int64_t begin = chunk * task_queries, end = smaller(s.T, begin + task_queries);
  if (!call.starts)
    return process_range<T>(view_of(call, b, 0, s.T, s.keys), {b, h, begin, end}, data);
  // A document is divided as in a call for this document only: into ranges of task_queries tokens
  // from its first token on. The task computes the ranges that begin in its queries.
  const int32_t* starts = call.starts + b * s.T;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t first = starts[t];
    if ((t - first) % task_queries != 0) continue;
    int64_t stop = t + 1;
    while (stop < s.T && stop < t + task_queries && starts[stop] == first) ++stop;
    const int64_t tokens = stop - first;
    process_range<T>(view_of(call, b, first, tokens, tokens), {b, h, t - first, tokens}, data);
  }
}

template <class T>
constexpr AttentionCode code = {tasks, scratch_bytes, forward<T>};

}  // namespace

extern const AttentionTable attention_forward_table;
const AttentionTable attention_forward_table = {{{}, code<float>, code<bf16>, code<f16>}};

}  // namespace zg::cpu::ZG_ISA
