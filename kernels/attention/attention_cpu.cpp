#include "zerograd/kernels/attention/attention_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "zerograd/kernels/cpu/indices.h"
#include "zerograd/kernels/cpu/level.h"
#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/portable_math.h"

namespace zg::cpu {
namespace {

int64_t heads_of_batch(const AttentionShape& s) { return s.B * s.H; }
int64_t groups_of_batch(const AttentionShape& s) { return s.B * s.key_heads(); }

/// The rows of one head in the accumulator type: each row is converted once and read many times.
template <class T, class A>
void load_rows(A* rows, const void* data, const HeadLayout& layout, const AttentionShape& s,
               int64_t b, int64_t h, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const T* row = at<T>(data, layout, b, h, t);
    for (int64_t d = 0; d < s.D; ++d) *rows++ = static_cast<A>(row[d]);
  }
}

template <class T, class A>
void store_rows(const A* rows, void* data, const HeadLayout& layout, const AttentionShape& s,
                int64_t b, int64_t h, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    T* row = at<T>(data, layout, b, h, t);
    for (int64_t d = 0; d < s.D; ++d) row[d] = T(*rows++);
  }
}

template <class A>
A dot(const A* x, const A* y, int64_t n) {
  A sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

template <class A>
void add_scaled(A* y, A factor, const A* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

template <class A>
struct PlainScratch {
  A *k, *v, *dk, *dv;      // [keys, D]
  A *weights, *factors;    // [keys]: of one query
  A *q, *out, *dout, *dq;  // [D]: of one query

  PlainScratch(std::byte* data, const AttentionShape& s) {
    A* next = reinterpret_cast<A*>(data);
    for (A** matrix : {&k, &v, &dk, &dv}) *matrix = std::exchange(next, next + s.keys * s.D);
    for (A** row : {&weights, &factors}) *row = std::exchange(next, next + s.keys);
    for (A** row : {&q, &out, &dout, &dq}) *row = std::exchange(next, next + s.D);
  }
  static int64_t bytes(const AttentionShape& s) {
    const int64_t elements = 4 * s.keys * s.D + 2 * s.keys + 4 * s.D;
    return (elements * static_cast<int64_t>(sizeof(A)) + 255) / 256 * 256;
  }
};

/// Computes the scores of query t and its dropout factors, for the keys that it sees.
template <class A>
void score_row(const AttentionCall& call, const PlainScratch<A>& scratch, int64_t b, int64_t h,
               int64_t t) {
  const AttentionShape& s = call.shape;
  const int64_t begin = first_key(s, t), end = visible_keys(s, t);
  const A scale = static_cast<A>(call.scale);
  const A* bias = bias_row<A>(call, h, t);
  const A* slopes = static_cast<const A*>(call.alibi_slopes);
  for (int64_t j = begin; j < end; ++j) {
    A score = scale * dot(scratch.q, scratch.k + j * s.D, s.D);
    if (slopes) score += slopes[h] * static_cast<A>(j - (t + s.offset));
    scratch.weights[j] = bias ? score + bias[j] : score;
  }
  if (begin >= end) return;
  const uint32_t sample = call.mask.sample + static_cast<uint32_t>(b);
  fill_factors(scratch.factors + begin, call.mask, sample, first_weight(call, h, t) + begin,
               end - begin);
}

template <class T>
void forward_of_head(const AttentionCall& call, int64_t b, int64_t h, std::byte* data) {
  using A = accumulator_t<T>;
  const AttentionShape& s = call.shape;
  const PlainScratch<A> scratch(data, s);
  load_rows<T>(scratch.k, call.k, s.k, s, b, h / s.group(), 0, s.keys);
  load_rows<T>(scratch.v, call.v, s.v, s, b, h / s.group(), 0, s.keys);
  for (int64_t t = 0; t < s.T; ++t) {
    const int64_t begin = first_key(s, t), end = visible_keys(s, t);
    load_rows<T>(scratch.q, call.q, s.q, s, b, h, t, t + 1);
    score_row(call, scratch, b, h, t);
    // Not -infinity: then a score of -infinity gets the weight 0 and not NaN.
    A largest = std::numeric_limits<A>::lowest();
    for (int64_t j = begin; j < end; ++j) largest = std::max(largest, scratch.weights[j]);
    A sum = 0;
    std::fill_n(scratch.out, s.D, A(0));
    for (int64_t j = begin; j < end; ++j) {
      const A weight = portable::exp(scratch.weights[j] - largest);
      sum += weight;
      add_scaled(scratch.out, weight * scratch.factors[j], scratch.v + j * s.D, s.D);
    }
    // The sum is at least 1 unless every key is hidden.
    for (int64_t d = 0; d < s.D; ++d) scratch.out[d] = sum == 0 ? A(0) : scratch.out[d] / sum;
    store_rows<T>(scratch.out, call.out, s.out, s, b, h, t, t + 1);
    if (call.log_sum) *log_sum_at<A>(call, b, h, t) = largest + portable::log(sum);
  }
}

template <class T>
void forward(const AttentionCall& call, int64_t task, std::byte* scratch) {
  const int64_t b = task / call.shape.H, h = task % call.shape.H;
  for_documents(call, b,
                [&](const AttentionCall& view) { forward_of_head<T>(view, b, h, scratch); });
}

/// Writes dq of query head h and adds to dk and dv in the scratch. With P the softmax and f the
/// dropout factors: dv_j = sum_t f P dout_t, and the gradient of a score is P (f dout_t . v_j -
/// D_t), where D_t = sum_j f P dout_t . v_j = dout_t . out_t.
template <class T, class A>
void add_head(const AttentionCall& call, int64_t b, int64_t h, const PlainScratch<A>& scratch) {
  const AttentionShape& s = call.shape;
  const A scale = static_cast<A>(call.scale);
  for (int64_t t = 0; t < s.T; ++t) {
    const A log_sum = *log_sum_at<A>(call, b, h, t);
    std::fill_n(scratch.dq, s.D, A(0));
    // A query whose keys are all hidden has no weights.
    const bool sees = log_sum != -std::numeric_limits<A>::infinity();
    if (sees) {
      load_rows<T>(scratch.q, call.q, s.q, s, b, h, t, t + 1);
      load_rows<T>(scratch.out, call.out, s.out, s, b, h, t, t + 1);
      load_rows<T>(scratch.dout, call.dout, s.out, s, b, h, t, t + 1);
      score_row(call, scratch, b, h, t);
    }
    const A mean = sees ? dot(scratch.dout, scratch.out, s.D) : A(0);
    for (int64_t j = first_key(s, t), end = sees ? visible_keys(s, t) : 0; j < end; ++j) {
      const A weight = portable::exp(scratch.weights[j] - log_sum), factor = scratch.factors[j];
      const A dweight = factor * dot(scratch.dout, scratch.v + j * s.D, s.D);
      const A dscore = weight * (dweight - mean) * scale;
      add_scaled(scratch.dv + j * s.D, weight * factor, scratch.dout, s.D);
      add_scaled(scratch.dq, dscore, scratch.k + j * s.D, s.D);
      add_scaled(scratch.dk + j * s.D, dscore, scratch.q, s.D);
    }
    store_rows<T>(scratch.dq, call.dq, s.q, s, b, h, t, t + 1);
  }
}

template <class T>
void backward(const AttentionCall& whole, int64_t task, std::byte* data) {
  using A = accumulator_t<T>;
  const int64_t key_heads = whole.shape.key_heads(), group = whole.shape.group();
  const int64_t b = task / key_heads, key_head = task % key_heads;
  for_documents(whole, b, [&](const AttentionCall& call) {
    const AttentionShape& s = call.shape;
    const PlainScratch<A> scratch(data, whole.shape);
    const int64_t keys = s.keys + call.hidden_keys;
    load_rows<T>(scratch.k, call.k, s.k, s, b, key_head, 0, s.keys);
    load_rows<T>(scratch.v, call.v, s.v, s, b, key_head, 0, s.keys);
    std::fill_n(scratch.dk, keys * s.D, A(0));
    std::fill_n(scratch.dv, keys * s.D, A(0));
    for (int64_t h = key_head * group; h < (key_head + 1) * group; ++h)
      add_head<T>(call, b, h, scratch);
    store_rows<T>(scratch.dk, call.dk, s.k, s, b, key_head, 0, keys);
    store_rows<T>(scratch.dv, call.dv, s.v, s, b, key_head, 0, keys);
  });
}

template <class T>
constexpr AttentionCode forward_of = {heads_of_batch, PlainScratch<accumulator_t<T>>::bytes,
                                      forward<T>};
template <class T>
constexpr AttentionCode backward_of = {groups_of_batch, PlainScratch<accumulator_t<T>>::bytes,
                                       backward<T>};

// The definition that other versions are tested against: row by row, in the accumulator type.
const AttentionTable plain_attention_forward = {
    {forward_of<double>, forward_of<float>, forward_of<bf16>, forward_of<f16>}};
const AttentionTable plain_attention_backward = {
    {backward_of<double>, backward_of<float>, backward_of<bf16>, backward_of<f16>}};

}  // namespace

ZG_DECLARE_LEVELS(AttentionTable, attention_forward_table)
ZG_DECLARE_LEVELS(AttentionTable, attention_backward_table)

namespace {

/// The vector code of the instruction set, or the plain code if there is none: for f64, and for
/// heads with more than largest_tiled_head elements.
template <class Args>
const AttentionCode& choose(const AttentionTable& vectors, const AttentionTable& plain,
                            const Args& a) {
  const bool tiled = a.q.dtype() != DType::f64 && a.shape.D <= largest_tiled_head;
  return (tiled ? vectors : plain).type[static_cast<int>(a.q.dtype())];
}

const AttentionCode& code_of(const AttentionForward& a, Isa isa) {
  return choose(ZG_AT_LEVEL(isa, attention_forward_table), plain_attention_forward, a);
}

const AttentionCode& code_of(const AttentionBackward& a, Isa isa) {
  return choose(ZG_AT_LEVEL(isa, attention_backward_table), plain_attention_backward, a);
}

/// Throws ShapeError unless each token is the first one of a document or has the value of the token
/// before it, and every key length is from 0 to keys.
template <class Args>
void check_masks(const char* op, const Args& a) {
  const AttentionShape& s = a.shape;
  const int32_t* starts = a.starts ? a.starts.template data<int32_t>() : nullptr;
  for (int64_t i = 0; starts && i < s.B * s.T; ++i) {
    const int64_t t = i % s.T;
    if (starts[i] == t || (t > 0 && starts[i] == starts[i - 1])) continue;
    raise<ShapeError>(
        "{}: starts holds {} at sample {}, token {}; expected {}{}", op, starts[i], i / s.T, t, t,
        t > 0 ? fmt::format(" for the first token of a document, or {} as at the token before",
                            starts[i - 1])
              : "");
  }
  if (a.key_lengths) check_indices(op, "key_lengths", a.key_lengths, s.keys + 1);
}

template <class Args>
AttentionCall call_of(const char* op, const Args& a) {
  check_masks(op, a);
  const AttentionShape& s = a.shape;
  return {.shape = s,
          .scale = s.scale != 0.0f ? double{s.scale} : 1.0 / std::sqrt(static_cast<double>(s.D)),
          .bias_head = a.bias && a.bias.shape().rank() == 3 ? s.T * s.keys : 0,
          .mask = dropout_mask(s.dropout_key, s.dropout),
          .q = a.q.raw(),
          .k = a.k.raw(),
          .v = a.v.raw(),
          .bias = a.bias.raw(),
          .alibi_slopes = a.alibi_slopes.raw(),
          .starts = a.starts ? a.starts.template data<int32_t>() : nullptr,
          .key_lengths = a.key_lengths ? a.key_lengths.template data<int32_t>() : nullptr,
          .out = a.out.raw(),
          .log_sum = a.log_sum.raw(),
          .all_queries = s.T,
          .all_keys = s.keys};
}

template <class Args>
int64_t scratch_of_workers(const Args& a, const Device::Traits& traits) {
  const AttentionCode& code = code_of(a, traits.isa);
  const int64_t workers = std::min<int64_t>(traits.threads, code.tasks(a.shape));
  return workers * code.scratch_bytes(a.shape);
}

void run(const AttentionCode& code, const AttentionCall& call, Workspace scratch, Stream& stream) {
  const int64_t bytes = code.scratch_bytes(call.shape);
  team(stream.traits().threads, code.tasks(call.shape),
       [&](int64_t task, int worker) { code.run(call, task, scratch.data + worker * bytes); });
}

}  // namespace

int64_t workspace_bytes(const AttentionForward& a, const Device::Traits& traits) {
  return scratch_of_workers(a, traits);
}
int64_t workspace_bytes(const AttentionBackward& a, const Device::Traits& traits) {
  return scratch_of_workers(a, traits);
}

void attention_forward(const AttentionForward& a, Workspace scratch, Stream& stream) {
  run(code_of(a, stream.traits().isa), call_of("attention_forward", a), scratch, stream);
}

void attention_backward(const AttentionBackward& a, Workspace scratch, Stream& stream) {
  AttentionCall call = call_of("attention_backward", a);
  call.dout = a.dout.raw();
  call.dq = a.dq.raw();
  call.dk = a.dk.raw();
  call.dv = a.dv.raw();
  run(code_of(a, stream.traits().isa), call, scratch, stream);
}

}  // namespace zg::cpu
