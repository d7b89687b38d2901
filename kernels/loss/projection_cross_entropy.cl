#include "zerograd/kernels/hpu/rows.clh"

// Row functions on a chunk of logits between the products. A row's sums are the largest logit so
// far, the sum of exp(logit - largest), and the target's logit once its chunk has passed. Milakov,
// Gimelshein 2018, arXiv:1805.02867, algorithm 3.

/// Columns [column, column + columns); the first chunk starts the sums.
#define ADD_CHUNK(index, index_type)                                                           \
  row_kernel void add_chunk_##index(__global const float* logits,                              \
                                    __global const index_type* targets, __global float4* sums, \
                                    long column, long columns) {                               \
    __local float parts[ROW_ITEMS];                                                            \
    const long n = get_group_id(0);                                                            \
    __global const float* const x = logits + n * columns;                                      \
    const float4 before = column > 0 ? sums[n] : (float4)(-INFINITY, 0.0f, 0.0f, 0.0f);        \
    float own = -INFINITY, sum = 0.0f;                                                         \
    for (long i = get_local_id(0); i < columns; i += ROW_ITEMS) own = larger(own, x[i]);       \
    own = group_max(own, parts);                                                               \
    const float best = before.x > own ? before.x : own; /* NaN stays in sum */                 \
    /* Without a largest logit all are minus infinity or NaN; 0 keeps them what they are. */   \
    const float shift = best == -INFINITY ? 0.0f : best;                                       \
    for (long i = get_local_id(0); i < columns; i += ROW_ITEMS) sum += exp(x[i] - shift);      \
    sum = group_sum(sum, parts);                                                               \
    if (get_local_id(0) != 0) return;                                                          \
    const long place = (long)targets[n] - column;                                              \
    sums[n] = (float4)(best, before.y * exp(before.x - shift) + sum,                           \
                       place >= 0 && place < columns ? x[place] : before.z, 0.0f);             \
  }

#define WRITE_LOSS(index, index_type)                                                        \
  element_kernel void write_loss_##index(                                                    \
      __global const float4* sums, __global const index_type* targets, __global float* loss, \
      long row, long rows, long V, long ignored, fault_parameters) {                         \
    const long i = element_index();                                                          \
    if (i >= rows) return;                                                                   \
    const long target = targets[row + i];                                                    \
    check_target(fault_arguments, row + i, target, ignored, V);                              \
    /* The difference of the two large terms first: the logarithm is small. */               \
    loss[row + i] =                                                                          \
        has_target(target, ignored, V) ? (sums[i].x - sums[i].z) + log(sums[i].y) : 0.0f;    \
  }

/// dlogits may be logits.
#define LOGIT_GRADIENTS(index, index_type)                                            \
  row_kernel void logit_gradients_##index(                                            \
      __global const float* logits, __global const index_type* targets,               \
      __global const float4* sums, __global real* dlogits, float factor, long column, \
      long columns, long V, long ignored) {                                           \
    const long n = get_group_id(0), target = targets[n];                              \
    const int counts = has_target(target, ignored, V);                                \
    const float log_sum = sums[n].x + log(sums[n].y);                                 \
    for (long i = get_local_id(0); i < columns; i += ROW_ITEMS) {                     \
      const float log_share = logits[n * columns + i] - log_sum;                      \
      const float slope = i == target - column ? expm1(log_share) : exp(log_share);   \
      dlogits[n * columns + i] = narrowed(counts ? slope * factor : 0.0f);            \
    }                                                                                 \
  }

ADD_CHUNK(i32, int)
ADD_CHUNK(i64, long)
WRITE_LOSS(i32, int)
WRITE_LOSS(i64, long)
LOGIT_GRADIENTS(i32, int)
LOGIT_GRADIENTS(i64, long)
