#pragma once

#include <cstddef>
#include <cstdint>

#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/elementwise/dropout_cpu.h"

namespace zg::cpu {

void attention_forward(const AttentionForward&, Workspace, Stream&);
void attention_backward(const AttentionBackward&, Workspace, Stream&);

/// The arguments of forward and backward as plain data. A pointer that a pass does not use is null.
struct AttentionCall {
  AttentionShape shape;
  double scale;       ///< never 0
  int64_t bias_head;  ///< elements from one head's bias to the next
  DropoutMask mask;
  const void *q, *k, *v, *bias, *alibi_slopes, *dout;
  void* out;      ///< read by backward
  void* log_sum;  ///< read by backward
  void *dq, *dk, *dv;
};

/// The functions of one pass (forward or backward) for one element type. The division into tasks
/// depends on the shape alone; tasks write different elements.
struct AttentionCode {
  int64_t (*tasks)(const AttentionShape&);
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

/// Query t attends to keys [0, visible_keys(t)).
inline int64_t visible_keys(const AttentionShape& shape, int64_t t) {
  const int64_t causal = t + shape.offset + 1;
  return shape.causal && causal < shape.keys ? causal : shape.keys;
}

/// The index, for dropout, of the weight of query t and key 0 within its sample.
inline int64_t first_weight(const AttentionShape& shape, int64_t h, int64_t t) {
  return (h * shape.T + t) * shape.keys;
}

}  // namespace
}  // namespace zg::cpu
