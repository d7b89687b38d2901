#include "zerograd/kernels/hpu/tile.clh"

// Teams of work-items, a power of two of them, have a row each. A team behind the last row works on
// it without writing: every work-item of the group comes to each barrier.

static inline float team_sum(float x, __local float* parts, uint team) {
  const uint i = get_local_id(0), place = i % team;
  barrier(CLK_LOCAL_MEM_FENCE);  // all have read the results of an earlier call
  parts[i] = x;
  for (uint half_size = team / 2; half_size > 0; half_size /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (place < half_size) parts[i] += parts[i + half_size];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return parts[i - place];
}

static inline float team_max(float x, __local float* parts, uint team) {
  const uint i = get_local_id(0), place = i % team;
  barrier(CLK_LOCAL_MEM_FENCE);
  parts[i] = x;
  for (uint half_size = team / 2; half_size > 0; half_size /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (place < half_size) parts[i] = larger(parts[i], parts[i + half_size]);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return parts[i - place];
}

#define team_row() (get_group_id(0) * (long)(ZG_GROUP / team) + (long)(get_local_id(0) / team))

element_kernel void softmax_forward(__global const real* x_rows, __global real* y_rows, long N,
                                    long C, uint team, int log_form) {
  __local float parts[ZG_GROUP];
  const long n = team_row(), begin = min(n, N - 1) * C, first = get_local_id(0) % team;
  __global const real* const x = x_rows + begin;
  __global real* const y = y_rows + begin;
  float best = -INFINITY, sum = 0.0f;
  for (long i = first; i < C; i += team) best = larger(best, widened(x[i]));
  best = team_max(best, parts, team);
  for (long i = first; i < C; i += team) sum += exp(widened(x[i]) - best);
  sum = team_sum(sum, parts, team);
  const float scale = 1.0f / sum, log_sum = log(sum);
  if (n >= N) return;
  for (long i = first; i < C; i += team) {
    const float shifted = widened(x[i]) - best;
    y[i] = narrowed(log_form ? shifted - log_sum : exp(shifted) * scale);
  }
}

element_kernel void softmax_backward(__global const real* y_rows, __global const real* dy_rows,
                                     __global real* dx_rows, long N, long C, uint team,
                                     int log_form) {
  __local float parts[ZG_GROUP];
  const long n = team_row(), begin = min(n, N - 1) * C, first = get_local_id(0) % team;
  __global const real *const y = y_rows + begin, *const dy = dy_rows + begin;
  __global real* const dx = dx_rows + begin;
  float sum = 0.0f;
  for (long i = first; i < C; i += team)
    sum += log_form ? widened(dy[i]) : widened(dy[i]) * widened(y[i]);
  sum = team_sum(sum, parts, team);
  if (n >= N) return;
  for (long i = first; i < C; i += team) {
    const float value = widened(y[i]), slope = widened(dy[i]);
    dx[i] = narrowed(log_form ? slope - exp(value) * sum : value * (slope - sum));
  }
}
