#pragma once

#include <cfloat>

#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/cuda/tile.cuh"

// Shared by the CUDA attention kernels: their arguments, the head that a block works on, and
// masking, bias and dropout of scores. attention.cu chooses the kernel:
//   attention_hopper.cu   forward on sm_90a, bf16 and f16, no dense bias and no dropout
//   attention_mma_*.cu    bf16 and f16 on the tensor cores of sm_80 and later
//   attention_plain.cu    every other dtype, head size and layout, in f32 on the ordinary cores
// Indices: b sample, h head, t query, j key, d element of a head's row (D of them).
namespace zg::cuda {

/// Arguments of forward and backward as plain data. A pointer that a pass does not use is null.
struct AttentionCall {
  AttentionShape shape;  ///< its scale is never 0
  int64_t bias_head;     ///< elements from one head's bias to the next; 0 if heads share the bias
  const void *q, *k, *v, *dout;
  const float *bias, *alibi_slopes;
  void* out;        ///< read by backward
  float* log_sum;   ///< read by backward
  float* row_dots;  ///< [B, H, T] scratch of backward: dout_t . out_t
  void *dq, *dk, *dv;
};

/// The head that a thread block works on, and the index of its block of rows within that head. The
/// grid is one-dimensional: B * H * blocks_per_head blocks, the block of rows varies fastest.
struct HeadBlock {
  int64_t b, h, block;
  __device__ HeadBlock(const AttentionShape& s, int64_t blocks_per_head)
      : b(blockIdx.x / blocks_per_head / s.H),
        h(blockIdx.x / blocks_per_head % s.H),
        block(blockIdx.x % blocks_per_head) {}
};

/// Address of row 0 of the head. Row t begins t * layout.token elements later.
template <class T, class Data>
__device__ inline T* head_data(Data* data, const HeadLayout& layout, const HeadBlock& head) {
  return static_cast<T*>(data) + layout.offset + head.b * layout.batch + head.h * layout.head;
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
__device__ inline float dropout_factor(const AttentionShape& s, const HeadBlock& head, int64_t t,
                                       int64_t j) {
  if (s.dropout == 0.0f) return 1.0f;
  const int64_t element = (head.h * s.T + t) * s.keys + j;
  const DropoutKey& key = s.dropout_key;
  const Philox::Block words =
      Philox::block({static_cast<uint32_t>(element / 4), key.sample + static_cast<uint32_t>(head.b),
                     key.step, key.site},
                    key.seed);
  // All indices are constants, so the words stay in registers.
  const uint32_t low = element & 1 ? words[1] : words[0], high = element & 1 ? words[3] : words[2];
  const bool kept = uniform(element & 2 ? high : low) >= s.dropout;
  return kept ? __fdiv_rn(1.0f, 1.0f - s.dropout) : 0.0f;
}

/// The score of query t and key j from the product of their rows.
__device__ inline float score_of(const AttentionCall& a, const HeadBlock& head, int64_t t,
                                 int64_t j, float product) {
  float score = a.shape.scale * product;
  if (a.alibi_slopes) {
    const int64_t distance = j - (t + a.shape.offset);
    score = __fmaf_rn(a.alibi_slopes[head.h], static_cast<float>(distance), score);
  }
  return a.bias ? score + a.bias[head.h * a.bias_head + t * a.shape.keys + j] : score;
}

/// Computes row_dots, which both backward passes read.
void dot_rows_of_out(DType dtype, const AttentionCall&, Stream&);

/// Computes in f32 on the ordinary cores, for any head size, layout and dtype.
void plain_attention_forward(DType dtype, const AttentionCall&, Stream&);
void plain_attention_backward(DType dtype, const AttentionCall&, Stream&);

/// Computes on the tensor cores. bf16 and f16; D <= 128; every row begins at a multiple of 16 bytes
/// and has a multiple of 16 bytes.
void mma_attention_forward(DType dtype, const AttentionCall&, Stream&);
void mma_attention_backward(DType dtype, const AttentionCall&, Stream&);

/// Computes with the instructions of sm_90a. The same limits as mma_attention_forward(), and no
/// dense bias, no dropout, and strides that a tensor map can hold. suits_hopper() checks all of
/// them.
bool suits_hopper(const AttentionCall&, const Stream&);
void hopper_attention_forward(DType dtype, const AttentionCall&, Stream&);

}  // namespace zg::cuda
