#include "zerograd/kernels/hpu/nest.clh"

// Softmax and log-softmax along an axis. A team of work-items, a power of two, handles a row, whose
// elements are `inner` apart.
// Teams beyond the last row compute the last row without writing it, because every work-item of a
// work-group must reach each barrier.

#define team_row() (get_group_id(0) * (long)(ZG_GROUP / team) + (long)(get_local_id(0) / team))

static inline long row_begin(long row, long C, long inner) {
  const long outer = quotient(row, inner);
  return outer * C * inner + row - outer * inner;
}

element_kernel void softmax_forward(__global const real* x_rows, __global real* y_rows, long N,
                                    long C, long inner, uint team, int log_form) {
  __local float parts[ZG_GROUP];
  const long n = team_row(), first = get_local_id(0) % team;
  const long begin = row_begin(min(n, N - 1), C, inner);
  __global const real* const x = x_rows + begin;
  __global real* const y = y_rows + begin;
  float maximum = -INFINITY, sum = 0.0f;
  for (long i = first; i < C; i += team) maximum = larger(maximum, widened(x[i * inner]));
  maximum = max_of_team(maximum, parts, team);
  for (long i = first; i < C; i += team) sum += exp(widened(x[i * inner]) - maximum);
  sum = sum_of_team(sum, parts, team);
  const float scale = 1.0f / sum, log_sum = log(sum);
  if (n >= N) return;
  for (long i = first; i < C; i += team) {
    const float shifted = widened(x[i * inner]) - maximum;
    y[i * inner] = narrowed(log_form ? shifted - log_sum : exp(shifted) * scale);
  }
}

element_kernel void softmax_backward(__global const real* y_rows, __global const real* dy_rows,
                                     __global real* dx_rows, long N, long C, long inner,
                                     uint team, int log_form) {
  __local float parts[ZG_GROUP];
  const long n = team_row(), first = get_local_id(0) % team;
  const long begin = row_begin(min(n, N - 1), C, inner);
  __global const real *const y = y_rows + begin, *const dy = dy_rows + begin;
  __global real* const dx = dx_rows + begin;
  float sum = 0.0f;
  for (long i = first; i < C; i += team)
    sum += log_form ? widened(dy[i * inner]) : widened(dy[i * inner]) * widened(y[i * inner]);
  sum = sum_of_team(sum, parts, team);
  if (n >= N) return;
  for (long i = first; i < C; i += team) {
    const float y_i = widened(y[i * inner]), dy_i = widened(dy[i * inner]);
    dx[i * inner] = narrowed(log_form ? dy_i - exp(y_i) * sum : y_i * (dy_i - sum));
  }
}
