#include "zerograd/kernels/hpu/rows.clh"

// Cross-entropy of logits [N, V], a work-group for each row.
//   forward   loss[n] = log(sum_i exp(x_i)) - x_target, or 0 without a target
//   backward  dlogits[n, i] = (softmax(x)_i - (i == target)) * dloss[n], or 0 without a target
#define CROSS_ENTROPY(index, index_type)                                                           \
  row_kernel void cross_entropy_forward_##index(                                                   \
      __global const real* logits, __global const index_type* targets, __global float* loss,       \
      __global float* log_sums, long V, long ignored, fault_parameters) {                          \
    __local float parts[ROW_ITEMS];                                                                \
    const long n = get_group_id(0), target = targets[n];                                           \
    __global const real* const x = logits + n * V;                                                 \
    float maximum = -INFINITY, sum = 0.0f;                                                         \
    for (long i = get_local_id(0); i < V; i += ROW_ITEMS)                                          \
      maximum = larger(maximum, widened(x[i]));                                                    \
    maximum = group_max(maximum, parts);                                                           \
    for (long i = get_local_id(0); i < V; i += ROW_ITEMS) sum += exp(widened(x[i]) - maximum);     \
    sum = group_sum(sum, parts);                                                                   \
    if (get_local_id(0) != 0) return;                                                              \
    const float log_sum = log(sum);                                                                \
    log_sums[n] = maximum + log_sum;                                                               \
    check_target(fault_arguments, n, target, ignored, V);                                          \
    /* Subtract the large terms first: adding the small log_sum first would round it. */           \
    loss[n] = has_target(target, ignored, V) ? (maximum - widened(x[target])) + log_sum : 0.0f;    \
  }                                                                                                \
                                                                                                   \
  row_kernel void cross_entropy_backward_##index(                                                  \
      __global const real* logits, __global const index_type* targets,                             \
      __global const float* log_sums, __global const float* dloss, __global real* dlogits, long V, \
      long ignored, fault_parameters) {                                                            \
    const long n = get_group_id(0), target = targets[n];                                           \
    const float log_sum = log_sums[n], dloss_n = dloss[n];                                         \
    const int is_counted = has_target(target, ignored, V);                                         \
    if (get_local_id(0) == 0) check_target(fault_arguments, n, target, ignored, V);                \
    for (long i = get_local_id(0); i < V; i += ROW_ITEMS) {                                        \
      const float probability = exp(widened(logits[n * V + i]) - log_sum);                         \
      dlogits[n * V + i] = narrowed(                                                               \
          is_counted ? (i == target ? probability - 1.0f : probability) * dloss_n : 0.0f);         \
    }                                                                                              \
  }

CROSS_ENTROPY(i32, int)
CROSS_ENTROPY(i64, long)
