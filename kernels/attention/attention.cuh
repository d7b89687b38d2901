#pragma once

#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/cuda/tile.cuh"

// Shared by the CUDA attention kernels: their arguments, the head and the rows that a block works
// on, the keys that a query sees, and bias and dropout of scores. attention.cu chooses the kernel:
//   attention_hopper*.cu  sm_90a, bf16 and f16, no dense bias, dropout or key lengths
//   attention_mma_*.cu    bf16 and f16 on the tensor cores of sm_80 and later
//   attention_plain.cu    every other dtype, head size and layout, in f32 on the ordinary cores
// Indices: b sample, h head, t query, j key, d element of a head's row (D of them).
namespace zg::cuda {

/// Arguments of forward and backward as plain data. A pointer that a pass does not use is null.
struct AttentionCall {
  /// Its scale is never 0. dropout_key.begin counts weights, not heads: kernels that have all
  /// registers in use add it from constant memory.
  AttentionShape shape;
  int64_t bias_head;  ///< elements from one head's bias to the next; 0 if heads share the bias
  const void *q, *k, *v, *dout;
  const float *bias, *alibi_slopes;
  const int32_t *starts, *key_lengths;
  void* out;       ///< read by backward
  float* log_sum;  ///< read by backward
  /// [B, H, T] scratch of backward: dout_t . out_t. The kernel that computes dq writes it before
  /// the kernel that computes dk and dv reads it.
  float* row_dots;
  void *dq, *dk, *dv;
};

/// The head that a thread block works on, and the index of its block of rows within that head. The
/// grid is one-dimensional: B * heads * blocks_per_head blocks, the block of rows varies fastest.
struct HeadBlock {
  int64_t b, h, block;
  __device__ HeadBlock(const AttentionShape& s, int64_t blocks_per_head)
      : HeadBlock(s.H, blocks_per_head) {}
  __device__ HeadBlock(int64_t heads, int64_t blocks_per_head)
      : b(blockIdx.x / blocks_per_head / heads),
        h(blockIdx.x / blocks_per_head % heads),
        block(blockIdx.x % blocks_per_head) {}

  /// The head h of q, or of k and v, of the same sample.
  __device__ HeadBlock with_head(int64_t head) const {
    HeadBlock other = *this;
    other.h = head;
    return other;
  }
};

/// Address of row 0 of the head. Row t begins t * layout.token elements later.
template <class T, class Data>
__device__ inline T* head_data(Data* data, const HeadLayout& layout, const HeadBlock& head) {
  return static_cast<T*>(data) + layout.offset + head.b * layout.batch + head.h * layout.head;
}

/// The index of a query in log_sum and row_dots.
__device__ inline int64_t row_index(const AttentionCall& a, const HeadBlock& head, int64_t t) {
  return (head.b * a.shape.H + head.h) * a.shape.T + t;
}

/// Some rows of a document, from `begin` on; without documents, of all tokens.
struct DocumentRows {
  int64_t first = 0;  ///< first token of the document; 0 without documents
  int64_t begin = 0;  ///< first of the rows
  int64_t end = 0;    ///< end of the document, not of the rows; without documents, all tokens
};

/// The rows that a thread block computes together: up to `rows` of one document, counted from its
/// first token. A document is divided as in a call for this document only, so its results have the
/// same bits. A block computes, one after the other, all ResidentRows that begin in rows
/// [block * rows, (block + 1) * rows) of the head; without documents there is one. So the grid
/// depends only on shapes. Values that are not starts of documents cause no access outside the
/// tensors.
///
///     for (ResidentRows resident(a, head, rows, tokens); resident.next();) ...
struct ResidentRows : DocumentRows {
  __device__ ResidentRows(const AttentionCall& a, const HeadBlock& head, int rows, int64_t tokens)
      : starts_(a.starts ? a.starts + head.b * tokens : nullptr),
        from_(head.block * rows),
        stop_(min(from_ + rows, tokens)),
        tokens_(tokens),
        rows_(rows) {}

  __device__ bool next() {
    while (from_ < stop_) {
      const int64_t token = from_;
      first = starts_ ? min(max(int64_t{starts_[token]}, int64_t{0}), token) : 0;
      from_ = end = starts_ ? end_of_document(token) : tokens_;
      begin = first + (token - first + rows_ - 1) / rows_ * rows_;
      if (begin < min(end, stop_)) return true;
    }
    return false;
  }

 private:
  /// The first token after `token` with a larger start.
  __device__ int64_t end_of_document(int64_t token) const {
    int64_t low = token + 1, high = tokens_;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (starts_[middle] > starts_[token])
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }

  const int32_t* starts_;
  int64_t from_, stop_, tokens_;
  int rows_;
};

/// The keys that the queries of one document of one sample see; without documents, the queries of
/// one sample. Query t sees [begin(t), end(t)), none if begin(t) >= end(t).
struct VisibleKeys {
  int64_t first, limit;  ///< of the document, less the keys that the key length hides
  int64_t ahead;         ///< causal: query t sees no key from t + ahead on; else very large
  int64_t window;        ///< 0: none

  /// For the document [resident.first, resident.end), if the call has documents.
  __device__ VisibleKeys(const AttentionCall& a, const HeadBlock& head,
                         const DocumentRows& resident)
      : first(resident.first),
        limit(a.starts ? resident.end : a.shape.keys),
        ahead(a.shape.causal ? a.shape.offset + 1 : int64_t{1} << 60),
        window(a.shape.window) {
    if (a.key_lengths) limit = min(limit, max(int64_t{a.key_lengths[head.b]}, int64_t{0}));
  }

  __device__ int64_t end(int64_t t) const { return min(t + ahead, limit); }
  __device__ int64_t begin(int64_t t) const {
    return window > 0 ? max(first, t + ahead - window) : first;
  }
  __device__ bool sees(int64_t t, int64_t j) const { return j < end(t) && j >= begin(t); }
  /// The first key of the first step of `step` keys that query t or a later one needs. Steps begin
  /// at the document.
  __device__ int64_t first_step(int64_t t, int step) const {
    return first + (begin(t) - first) / step * step;
  }
  /// The first query of the first step of `step` queries that key j or a later one needs.
  __device__ int64_t first_query_step(int64_t j, int step) const {
    return first + max(j + 1 - ahead - first, int64_t{0}) / step * step;
  }
  /// Queries from this one on see none of the keys [j0, j1). `queries` is the end of the document,
  /// or T.
  __device__ int64_t query_end(int64_t j0, int64_t j1, int64_t queries) const {
    if (j0 >= limit) return first;
    return window > 0 ? min(queries, min(j1, limit) + window - ahead) : queries;
  }
};

/// The factor by which dropout multiplies the weight of query t and key j.
__device__ inline float dropout_factor(const AttentionShape& s, const HeadBlock& head, int64_t t,
                                       int64_t j) {
  if (s.dropout == 0.0f) return 1.0f;
  const DropoutKey& key = s.dropout_key;
  const int64_t element = key.begin + (head.h * s.T + t) * s.keys + j;
  const Philox::Block words =
      Philox::block({static_cast<uint32_t>(element / 4), key.sample + static_cast<uint32_t>(head.b),
                     key.step, key.site},
                    key.seed);
  const bool kept = uniform(Philox::word(words, element)) >= s.dropout;
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

/// The count of a launch of attention. `query_rows` and `key_rows` are the numbers of arrays of the
/// size of q and of k that the kernel reads or writes, `statistics` the number of [B, H, T] arrays
/// of floats, `products` the number of products of matrices. Their operations are counted for each
/// pair of a query and a key that it sees, as if starts and key_lengths, which the host does not
/// know, hid no key.
inline Work attention_work(const char* op, const char* kernel, DType dtype,
                           const AttentionCall& call, int64_t query_rows, int64_t key_rows,
                           int64_t statistics, int64_t products) {
  const AttentionShape& s = call.shape;
  const int64_t row = s.D * static_cast<int64_t>(size_of(dtype));
  const int64_t bias = call.bias ? (call.bias_head ? s.H : 1) * s.T * s.keys : int64_t{0};
  const int64_t floats = statistics * s.B * s.H * s.T + bias;
  return {op, kernel,
          s.B * (query_rows * s.H * s.T + key_rows * s.key_heads() * s.keys) * row +
              floats * static_cast<int64_t>(sizeof(float)),
          2 * products * s.D * s.B * s.H * visible_pairs(s)};
}
/// Reads q, k, v and writes out and log_sum: q k^T and P v.
inline Work forward_work(const char* kernel, DType dtype, const AttentionCall& call) {
  return attention_work("attention_forward", kernel, dtype, call, 2, 2, call.log_sum ? 1 : 0, 2);
}
/// Reads q, dout, k, v, log_sum, row_dots and writes dk and dv: q k^T, dout v^T, and their sums.
inline Work backward_keys_work(const char* kernel, DType dtype, const AttentionCall& call) {
  return attention_work("attention_backward", kernel, dtype, call, 2, 4, 2, 4);
}
/// Reads q, out, dout, k, v, log_sum and writes dq and row_dots: q k^T, dout v^T, and the sum.
inline Work backward_queries_work(const char* kernel, DType dtype, const AttentionCall& call) {
  return attention_work("attention_backward", kernel, dtype, call, 4, 2, 2, 3);
}

/// Reports invalid starts and key lengths.
void check_masks(const char* op, const AttentionCall&, Stream&);

/// Computes in f32 on the ordinary cores, for any head size, layout and dtype.
void plain_attention_forward(DType dtype, const AttentionCall&, Stream&);
void plain_attention_backward(DType dtype, const AttentionCall&, Stream&);

/// Computes on the tensor cores. bf16 and f16; D <= 128; every row begins at a multiple of 16 bytes
/// and has a multiple of 16 bytes.
void mma_attention_forward(DType dtype, const AttentionCall&, Stream&);
void mma_attention_backward(DType dtype, const AttentionCall&, Stream&);

/// Computes with the instructions of sm_90a. The same limits as mma_attention_forward(), and no
/// dense bias, no dropout, no key lengths (keys that these hide must not be read), and strides that
/// a tensor map can hold. suits_hopper() checks all of them.
bool suits_hopper(const AttentionCall&, const Stream&);
void hopper_attention_forward(DType dtype, const AttentionCall&, Stream&);
void hopper_attention_backward(DType dtype, const AttentionCall&, Stream&);

}  // namespace zg::cuda
