#pragma once

#include <cstdint>
#include <vector>

#include "zerograd/kernels/kernel.h"
#include "zerograd/runtime/api.h"
#include "zerograd/runtime/random.h"

namespace zg {

/// The layout of q, k, v, out or one of their gradients in a tensor: element (b, h, t, d) is at
/// offset + b * batch + h * head + t * token + d, in elements. So q, k and v of a fused [B, T, 3C]
/// are read and written in place, and a key-value cache of any capacity can be passed as k and v.
struct HeadLayout {
  int64_t offset = 0, batch = 0, head = 0, token = 0;
};

/// How q, k and v share the last axis of a fused projection [B, T, 3C].
enum class QKVOrder : uint8_t {
  by_part,  ///< [3, H, D], as in GPT-2
  by_head   ///< [H, 3, D], as in BLOOM and Megatron-LM: the data of a head is contiguous
};

/// Arguments that forward and backward share. Query t has position t + offset; if causal, it
/// attends to keys 0 to t + offset. The first `keys` keys are valid (in training keys = T and
/// offset = 0).
struct AttentionShape {
  int64_t B = 0, H = 0, T = 0;  ///< batch, heads, queries
  int64_t keys = 0, offset = 0;
  int64_t D = 0;  ///< head size, 1 to 1024; the CPU has vector code up to 256
  bool causal = true;
  float scale = 0.0f;  ///< factor of the scores; 0: 1 / sqrt(D)
  HeadLayout q, k, v, out;
  float dropout = 0.0f;    ///< probability, on the attention weights
  DropoutKey dropout_key;  ///< sample b is dropout_key.sample + b; element (h * T + t) * keys + j
};

/// The layout of queries (part 0), keys (1) or values (2) in a fused projection. Reads H, T and D
/// of shape.
ZG_API HeadLayout qkv_layout(const AttentionShape& shape, QKVOrder order, int64_t part);

/// out = softmax(scale * q k^T + bias) v with online softmax: no T x keys matrix in memory. Dao
/// 2023, arXiv:2307.08691, algorithm 1. alibi_slopes add slope[h] * (j - (t + offset)) to the score
/// of query t and key j (ALiBi, Press et al. 2022, arXiv:2108.12409), without a bias tensor in
/// memory.
struct AttentionForward {
  Tensor q, k, v;       ///< f64 | f32 | bf16 | f16, laid out as `shape` says; may be one tensor
  Tensor bias;          ///< absent, or [T, keys] or [H, T, keys], additive, accumulator dtype
  Tensor alibi_slopes;  ///< absent, or [H], accumulator dtype; alibi_slopes() has the paper's
  Tensor out;
  Tensor
      log_sum;  ///< [B, H, T] out, accumulator dtype, natural log; kept for backward; may be absent
  AttentionShape shape;
};

/// dq, dk and dv share q's, k's and v's layouts. The bias and the slopes get no gradient.
struct AttentionBackward {
  Tensor q, k, v, bias, alibi_slopes, out, log_sum;
  Tensor dout;        ///< like out
  Tensor dq, dk, dv;  ///< out; every element of each layout is written
  AttentionShape shape;
};

ZG_API void validate(const AttentionForward&);
ZG_API void validate(const AttentionBackward&);
inline std::vector<Operand> operands(const AttentionForward& a) {
  return {{"q", a.q},
          {"k", a.k},
          {"v", a.v},
          {"bias", a.bias},
          {"alibi_slopes", a.alibi_slopes},
          {"out", a.out, Operand::out},
          {"log_sum", a.log_sum, Operand::out}};
}
inline std::vector<Operand> operands(const AttentionBackward& a) {
  return {{"q", a.q},
          {"k", a.k},
          {"v", a.v},
          {"bias", a.bias},
          {"alibi_slopes", a.alibi_slopes},
          {"out", a.out},
          {"log_sum", a.log_sum},
          {"dout", a.dout},
          {"dq", a.dq, Operand::out},
          {"dk", a.dk, Operand::out},
          {"dv", a.dv, Operand::out}};
}
/// "B 8, H 12, T 1024, keys 1024, D 64, causal"
ZG_API std::string sizes(const AttentionForward&);
ZG_API std::string sizes(const AttentionBackward&);

namespace kernels {
extern ZG_API Kernel<AttentionForward> attention_forward;
extern ZG_API Kernel<AttentionBackward> attention_backward;
}  // namespace kernels

/// The `alibi_slopes` of attention for a model of `heads` heads, one for each head. A tensor
/// parallel rank takes the slopes of its own heads. Press et al. 2022, arXiv:2108.12409, section 3:
/// for n heads, n a power of two, the powers 1 to n of 2^(-8/n). For other counts: the slopes of
/// the next lower power of two n, then the 1st, 3rd, 5th, ... slope of 2n heads. Each slope is
/// rounded to f32 once. Throws ConfigError for less than one head.
ZG_API std::vector<float> alibi_slopes(int64_t heads);

}  // namespace zg
