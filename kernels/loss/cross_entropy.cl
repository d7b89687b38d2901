#include "zerograd/kernels/hpu/rows.clh"

#define CROSS_ENTROPY(index, index_type)                                                           \
  row_kernel void cross_entropy_forward_##index(                                                   \
      __global const real* logits, __global const index_type* targets, __global float* loss,       \
      __global float* log_sums, long V, long ignored, fault_parameters) {                          \
    __local float parts[ROW_ITEMS];                                                                \
    const long n = get_group_id(0), target = targets[n];                                           \
    __global const real* const x = logits + n * V;                                                 \
    float best = -INFINITY, sum = 0.0f;                                                            \
    for (long i = get_local_id(0); i < V; i += ROW_ITEMS) best = larger(best, widened(x[i]));      \
    best = group_max(best, parts);                                                                 \
    for (long i = get_local_id(0); i < V; i += ROW_ITEMS) sum += exp(widened(x[i]) - best);        \
    sum = group_sum(sum, parts);                                                                   \
    if (get_local_id(0) != 0) return;                                                              \
    const float log_sum = log(sum);                                                                \
    log_sums[n] = best + log_sum;                                                                  \
    check_target(fault_arguments, n, target, ignored, V);                                          \
    /* The difference of the two large terms first: log_sum is small. */                           \
    loss[n] = has_target(target, ignored, V) ? (best - widened(x[target])) + log_sum : 0.0f;       \
  }                                                                                                \
                                                                                                   \
  row_kernel void cross_entropy_backward_##index(                                                  \
      __global const real* logits, __global const index_type* targets,                             \
      __global const float* log_sums, __global const float* dloss, __global real* dlogits, long V, \
      long ignored, fault_parameters) {                                                            \
    const long n = get_group_id(0), target = targets[n];                                           \
    const float log_sum = log_sums[n], slope = dloss[n];                                           \
    const int counts = has_target(target, ignored, V);                                             \
    if (get_local_id(0) == 0) check_target(fault_arguments, n, target, ignored, V);                \
    for (long i = get_local_id(0); i < V; i += ROW_ITEMS) {                                        \
      const float share = exp(widened(logits[n * V + i]) - log_sum);                               \
      dlogits[n * V + i] = narrowed(counts ? (i == target ? share - 1.0f : share) * slope : 0.0f); \
    }                                                                                              \
  }

CROSS_ENTROPY(i32, int)
CROSS_ENTROPY(i64, long)
