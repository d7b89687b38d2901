#pragma once

#include <cfloat>

#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/cuda/tile.cuh"

// Shared by the attention kernels: their arguments, and masking, bias and dropout of scores.
namespace zg::cuda {

/// Arguments of forward and backward as plain data. A pointer that a pass does not use is null.
struct AttentionCall {
  AttentionShape shape;  ///< its scale is never 0
  int64_t bias_head;     ///< elements from one head's bias to the next
  const void *q, *k, *v, *dout;
  const float *bias, *alibi_slopes;
  void* out;        ///< read by backward
  float* log_sum;   ///< read by backward
  float* row_dots;  ///< [B, H, T] scratch of backward: dout_t . out_t
  void *dq, *dk, *dv;
};

/// A block's head, and which part of the head's rows it has.
struct HeadPart {
  int64_t b, h, part;
  __device__ HeadPart(const AttentionShape& s, int64_t parts)
      : b(blockIdx.x / parts / s.H), h(blockIdx.x / parts % s.H), part(blockIdx.x % parts) {}
};

/// Row 0 of a head; row t is t * layout.token further on.
template <class T, class Data>
__device__ inline T* head_of(Data* data, const HeadLayout& layout, const HeadPart& at) {
  return static_cast<T*>(data) + layout.offset + at.b * layout.batch + at.h * layout.head;
}

/// Query t sees keys [0, visible_keys(t)).
__device__ inline int64_t visible_keys(const AttentionShape& s, int64_t t) {
  const int64_t causal = t + s.offset + 1;
  return s.causal && causal < s.keys ? causal : s.keys;
}

/// The first query that sees key j; all later queries see it, too.
__device__ inline int64_t first_query(const AttentionShape& s, int64_t j) {
  return s.causal && j > s.offset ? j - s.offset : 0;
}

/// The factor by which dropout multiplies the weight of query t and key j.
__device__ inline float dropout_factor(const AttentionShape& s, const HeadPart& at, int64_t t,
                                       int64_t j) {
  if (s.dropout == 0.0f) return 1.0f;
  const int64_t element = (at.h * s.T + t) * s.keys + j;
  const DropoutKey& key = s.dropout_key;
  const Philox::Block words =
      Philox::block({static_cast<uint32_t>(element / 4), key.sample + static_cast<uint32_t>(at.b),
                     key.step, key.site},
                    key.seed);
  // All indices are constants, so the words stay in registers.
  const uint32_t low = element & 1 ? words[1] : words[0], high = element & 1 ? words[3] : words[2];
  const bool kept = uniform(element & 2 ? high : low) >= s.dropout;
  return kept ? __fdiv_rn(1.0f, 1.0f - s.dropout) : 0.0f;
}

/// The score of query t and key j from the product of their rows.
__device__ inline float score_of(const AttentionCall& a, const HeadPart& at, int64_t t, int64_t j,
                                 float product) {
  float score = a.shape.scale * product;
  if (a.alibi_slopes) {
    const int64_t distance = j - (t + a.shape.offset);
    score = __fmaf_rn(a.alibi_slopes[at.h], static_cast<float>(distance), score);
  }
  return a.bias ? score + a.bias[at.h * a.bias_head + t * a.shape.keys + j] : score;
}

/// row_dots, which both ways of the backward pass need.
void dot_rows_of_out(DType dtype, const AttentionCall&, Stream&);

/// On the ordinary cores, in f32: any head size, layout and dtype.
void plain_attention_forward(DType dtype, const AttentionCall&, Stream&);
void plain_attention_backward(DType dtype, const AttentionCall&, Stream&);

/// By the tensor cores, of bf16 and f16: heads of up to 128 in whole multiples of 16 bytes.
void mma_attention_forward(DType dtype, const AttentionCall&, Stream&);
void mma_attention_backward(DType dtype, const AttentionCall&, Stream&);

/// By the instructions of sm_90a: the same heads, without dense bias and dropout, and only layouts
/// whose strides a tensor map accepts.
bool suits_hopper(const AttentionCall&, const Stream&);
void hopper_attention_forward(DType dtype, const AttentionCall&, Stream&);

}  // namespace zg::cuda
