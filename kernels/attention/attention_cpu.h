#pragma once

#include <cstddef>
#include <cstdint>

#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/elementwise/dropout_cpu.h"

namespace zg::cpu {

void attention_forward(const AttentionForward&, Workspace, Stream&);
void attention_backward(const AttentionBackward&, Workspace, Stream&);

/// The arguments of forward and backward as plain data. A pointer that a pass does not use is null.
///
/// view_of() makes the call of one document, or of the valid keys of one sample, from the whole
/// call: its layouts begin at `first`, and T and keys count from there. log_sum, bias and the
/// elements of dropout keep the extents of the whole call.
struct AttentionCall {
  AttentionShape shape;
  double scale;       ///< never 0
  int64_t bias_head;  ///< elements from one head's bias to the next
  DropoutMask mask;
  const void *q, *k, *v, *bias, *alibi_slopes, *dout;
  const int32_t *starts, *key_lengths;
  void* out;      ///< read by backward
  void* log_sum;  ///< read by backward
  void *dq, *dk, *dv;
  int64_t all_queries, all_keys;  ///< T and keys of the whole call
  int64_t first = 0;              ///< token of the whole call at which the view begins
  int64_t hidden_keys = 0;        ///< keys after shape.keys that no query sees: dk and dv are 0
};

/// The functions of one pass (forward or backward) for one element type. The division into tasks
/// depends only on the shape; tasks write different elements.
struct AttentionCode {
  int64_t (*tasks)(const AttentionShape&);          ///< of a whole call
  int64_t (*scratch_bytes)(const AttentionShape&);  ///< per worker, a multiple of 256
  void (*run)(const AttentionCall&, int64_t task, std::byte* scratch);
};

/// The largest head size of the vector code: its tiles have rows of this length.
inline constexpr int64_t largest_tiled_head = 256;

/// By dtype: f64, f32, bf16, f16.
struct AttentionTable {
  AttentionCode type[4];
};

// Internal linkage: a copy compiled for AVX-512 must not be linked into code for every machine.
namespace {

/// The address of element (b, h, t, 0).
template <class T>
inline T* at(const void* data, const HeadLayout& layout, int64_t b, int64_t h, int64_t t) {
  T* elements = static_cast<T*>(const_cast<void*>(data));
  return elements + layout.offset + b * layout.batch + h * layout.head + t * layout.token;
}

/// Query t sees keys [first_key(t), visible_keys(t)); none if first_key(t) >= visible_keys(t).
inline int64_t visible_keys(const AttentionShape& shape, int64_t t) {
  const int64_t causal = t + shape.offset + 1;
  return shape.causal && causal < shape.keys ? causal : shape.keys;
}
inline int64_t first_key(const AttentionShape& shape, int64_t t) {
  const int64_t first = t + shape.offset + 1 - shape.window;
  return shape.window > 0 && first > 0 ? first : 0;
}
/// Queries from this one on see no key below `keys`.
inline int64_t query_end(const AttentionShape& shape, int64_t keys) {
  const int64_t end = keys + shape.window - 1 - shape.offset;
  return shape.window == 0 || end > shape.T ? shape.T : end;
}

/// The call for T queries and `keys` keys of sample b, both from token `first` on. Keys that the
/// sample's key length hides are left out.
inline AttentionCall view_of(const AttentionCall& call, int64_t b, int64_t first, int64_t T,
                             int64_t keys) {
  AttentionCall view = call;
  AttentionShape& s = view.shape;
  for (HeadLayout* layout : {&s.q, &s.k, &s.v, &s.out}) layout->offset += first * layout->token;
  view.first = first;
  s.T = T;
  s.keys = keys;
  if (call.key_lengths) {
    const int64_t valid = call.key_lengths[b] - first;
    s.keys = valid < 0 ? 0 : valid < keys ? valid : keys;
  }
  view.hidden_keys = keys - s.keys;
  return view;
}

/// Calls f with the view of each document of sample b in turn; without documents, of the sample.
template <class F>
inline void for_documents(const AttentionCall& call, int64_t b, const F& f) {
  const int64_t T = call.shape.T;
  if (!call.starts) return f(view_of(call, b, 0, T, call.shape.keys));
  const int32_t* starts = call.starts + b * T;
  for (int64_t begin = 0, end = 0; begin < T; begin = end) {
    while (end < T && starts[end] == begin) ++end;
    f(view_of(call, b, begin, end - begin, end - begin));
  }
}

/// The log_sum of query t.
template <class T>
inline T* log_sum_at(const AttentionCall& call, int64_t b, int64_t h, int64_t t) {
  return static_cast<T*>(call.log_sum) + (b * call.shape.H + h) * call.all_queries + call.first + t;
}

/// The index, for dropout, of the weight of query t and key 0 within its sample.
inline int64_t first_weight(const AttentionCall& call, int64_t h, int64_t t) {
  const int64_t head = call.shape.dropout_key.begin + h;
  return (head * call.all_queries + call.first + t) * call.all_keys + call.first;
}

/// The bias of query t from key 0 on; null without bias.
template <class T>
inline const T* bias_row(const AttentionCall& call, int64_t h, int64_t t) {
  const T* bias = static_cast<const T*>(call.bias);
  if (!bias) return nullptr;
  return bias + h * call.bias_head + (call.first + t) * call.all_keys + call.first;
}

}  // namespace
}  // namespace zg::cpu
