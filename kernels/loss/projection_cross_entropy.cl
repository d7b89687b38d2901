#include "zerograd/kernels/hpu/rows.clh"

// Cross-entropy of logits that are computed in chunks of rows and columns (projection_chunks.h) by
// matmul: add_chunk adds each chunk to the rows' log-sums, write_loss computes the loss,
// logit_gradients turns a chunk into dlogits. The log-sum of a row is (x) the largest logit so far,
// (y) the sum of exp(logit - largest), (z) the target's logit, after its chunk was added. Milakov,
// Gimelshein 2018, arXiv:1805.02867, algorithm 3.

/// Adds columns [column, column + columns), whose rows are `distance` apart, to the log-sums; the
/// chunk at column 0 starts them. One work-group for each row.
#define ADD_CHUNK(index, index_type)                                                            \
  row_kernel void add_chunk_##index(__global const float* logits,                               \
                                    __global const index_type* targets, __global float4* sums,  \
                                    long column, long columns, long distance) {                 \
    __local float parts[ROW_ITEMS];                                                             \
    const long n = get_group_id(0);                                                             \
    __global const float* const x = logits + n * distance;                                      \
    const float4 previous = column > 0 ? sums[n] : (float4)(-INFINITY, 0.0f, 0.0f, 0.0f);       \
    float chunk_maximum = -INFINITY, sum = 0.0f;                                                \
    for (long i = get_local_id(0); i < columns; i += ROW_ITEMS)                                 \
      chunk_maximum = larger(chunk_maximum, x[i]);                                              \
    chunk_maximum = group_max(chunk_maximum, parts);                                            \
    const float maximum =                                                                       \
        previous.x > chunk_maximum ? previous.x : chunk_maximum; /* sum keeps NaN */            \
    /* All logits minus infinity: subtracting the maximum would give NaN. */                    \
    const float shift = maximum == -INFINITY ? 0.0f : maximum;                                  \
    for (long i = get_local_id(0); i < columns; i += ROW_ITEMS) sum += exp(x[i] - shift);       \
    sum = group_sum(sum, parts);                                                                \
    if (get_local_id(0) != 0) return;                                                           \
    const long target_column = (long)targets[n] - column;                                       \
    sums[n] =                                                                                   \
        (float4)(maximum, previous.y * exp(previous.x - shift) + sum,                           \
                 target_column >= 0 && target_column < columns ? x[target_column] : previous.z, \
                 0.0f);                                                                         \
  }

/// loss[row + i] from the log-sum of row i, one work-item for each row.
#define WRITE_LOSS(index, index_type)                                                        \
  element_kernel void write_loss_##index(                                                    \
      __global const float4* sums, __global const index_type* targets, __global float* loss, \
      long row, long rows, long V, long ignored, fault_parameters) {                         \
    const long i = element_index();                                                          \
    if (i >= rows) return;                                                                   \
    const long target = targets[row + i];                                                    \
    check_target(fault_arguments, row + i, target, ignored, V);                              \
    /* Subtract the large terms first: adding the small log first would round it. */         \
    loss[row + i] =                                                                          \
        has_target(target, ignored, V) ? (sums[i].x - sums[i].z) + log(sums[i].y) : 0.0f;    \
  }

/// dlogits = (softmax(logits) - one_hot(target)) * factor. dlogits may be the same memory as
/// logits.
#define LOGIT_GRADIENTS(index, index_type)                                                         \
  row_kernel void logit_gradients_##index(                                                         \
      __global const float* logits, __global const index_type* targets,                            \
      __global const float4* sums, __global real* dlogits, float factor, long column,              \
      long columns, long distance, long V, long ignored) {                                         \
    const long n = get_group_id(0), target = targets[n];                                           \
    const int is_counted = has_target(target, ignored, V);                                         \
    const float log_sum = sums[n].x + log(sums[n].y);                                              \
    for (long i = get_local_id(0); i < columns; i += ROW_ITEMS) {                                  \
      const float log_probability = logits[n * distance + i] - log_sum;                            \
      const float gradient = i == target - column ? expm1(log_probability) : exp(log_probability); \
      dlogits[n * distance + i] = narrowed(is_counted ? gradient * factor : 0.0f);                 \
    }                                                                                              \
  }

ADD_CHUNK(i32, int)
ADD_CHUNK(i64, long)
WRITE_LOSS(i32, int)
WRITE_LOSS(i64, long)
LOGIT_GRADIENTS(i32, int)
LOGIT_GRADIENTS(i64, long)
