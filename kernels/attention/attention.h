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

/// Arguments that forward and backward share. Query t stands at position t + offset and, when
/// causal, sees keys 0 to t + offset; `keys` keys are valid (keys = T and offset = 0 in training).
/// `window`, `starts` and `key_lengths` hide more keys. A query that sees no key has the output 0
/// and the log_sum minus infinity, and adds nothing to any gradient.
struct AttentionShape {
  int64_t B = 0, H = 0, T = 0;  ///< batch, heads of q and out, queries
  int64_t keys = 0, offset = 0;
  int64_t D = 0;  ///< head size, 1 to 1024; the CPU has vector code up to 256
  bool causal = true;
  float scale = 0.0f;  ///< factor of the scores; 0: 1 / sqrt(D)
  HeadLayout q, k, v, out;
  float dropout = 0.0f;  ///< probability, on the attention weights
  /// For weights [B, H, T, keys]; H heads (axis 1) may be a slice of dropout_key.whole heads.
  DropoutKey dropout_key;
  /// Heads of k and v, a divisor of H; 0: H. Query head h reads head h / (H / kv_heads). dk and dv
  /// are sums over the query heads of a group in rising h (Ainslie et al. 2023, arXiv:2305.13245).
  int64_t kv_heads = 0;
  /// The query at position p sees keys from p - window + 1 on, if causal; 0: from key 0 on.
  int64_t window = 0;

  constexpr int64_t key_heads() const { return kv_heads == 0 ? H : kv_heads; }
  /// Query heads that read one head of k and v.
  constexpr int64_t group() const { return kv_heads == 0 ? 1 : H / kv_heads; }
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
  Tensor alibi_slopes;  ///< absent, or [H], accumulator dtype; alibi_slopes() returns the paper's
  /// Absent, or [B, T] i32: the first token of the document that token t belongs to. Token t sees
  /// its own document only. The results have the bits of a separate call for each document. Causal,
  /// keys == T, offset 0.
  Tensor starts;
  Tensor key_lengths;  ///< absent, or [B] i32: the sample's keys from this one on are hidden
  Tensor out;
  /// [B, H, T] out, accumulator dtype, natural log; kept for backward; may be absent.
  Tensor log_sum;
  AttentionShape shape;
};

/// dq, dk and dv share q's, k's and v's layouts. The bias and the slopes get no gradient.
struct AttentionBackward {
  Tensor q, k, v, bias, alibi_slopes, starts, key_lengths, out, log_sum;
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
          {"starts", a.starts},
          {"key_lengths", a.key_lengths},
          {"out", a.out, Operand::out},
          {"log_sum", a.log_sum, Operand::out}};
}
inline std::vector<Operand> operands(const AttentionBackward& a) {
  return {{"q", a.q},
          {"k", a.k},
          {"v", a.v},
          {"bias", a.bias},
          {"alibi_slopes", a.alibi_slopes},
          {"starts", a.starts},
          {"key_lengths", a.key_lengths},
          {"out", a.out},
          {"log_sum", a.log_sum},
          {"dout", a.dout},
          {"dq", a.dq, Operand::out},
          {"dk", a.dk, Operand::out},
          {"dv", a.dv, Operand::out}};
}
/// The pairs of a query and a key that it sees, of one head, as if starts and key_lengths hid none.
ZG_API int64_t visible_pairs(const AttentionShape&);
/// Counts two products for each visible pair in forward and five in backward, and the bytes of the
/// elements in the layouts.
ZG_API void adjust_count(OpCount&, const AttentionForward&);
ZG_API void adjust_count(OpCount&, const AttentionBackward&);
/// "B 8, H 12, T 1024, keys 1024, D 64, causal", then kv_heads and window if they are set.
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
