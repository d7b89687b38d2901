#include "zerograd/kernels/hpu/tile.clh"

// LayerNorm and RMSNorm over rows x [N, C]. Memory bound. A team of work-items handles a row: a
// sub-group if the device has them, else the whole work-group of 128.
#define ZG_TEAM_GROUP 128
#ifdef ZG_SUB_GROUPS
#define team_kernel \
  kernel_of(ZG_TEAM_GROUP) __attribute__((intel_reqd_sub_group_size(ZG_SUB_GROUPS)))
#define team_size ZG_SUB_GROUPS
#define team_memory  // none
#define team_parts 0
#define team_rank() ((int)get_sub_group_local_id())
#define team_row() \
  ((long)get_group_id(0) * (ZG_TEAM_GROUP / ZG_SUB_GROUPS) + (long)get_sub_group_id())
static inline float team_sum(float x, __local float* unused) {
  (void)unused;
  return sub_group_reduce_add(x);
}
#else
#define team_kernel kernel_of(ZG_TEAM_GROUP)
#define team_size ZG_TEAM_GROUP
#define team_memory __local float parts[ZG_TEAM_GROUP];
#define team_parts parts
#define team_rank() ((int)get_local_id(0))
#define team_row() ((long)get_group_id(0))
#define team_sum group_sum
#endif

/// The forward pass over the team's row: LayerNorm if `centred`, else RMSNorm.
static inline void norm_forward(int centred, __local float* parts, __global const real* x,
                                __global const real* residual, __global const real* gamma,
                                __global const real* beta, __global real* y, __global real* sum,
                                __global float* mean_of, __global float* rstd_of, long N, int C,
                                float epsilon) {
  const long n = team_row();
  if (n >= N) return;  // the whole team
  const int first = team_rank();
  x += n * C;
  y += n * C;
  if (residual) {
    // The norm reads the rounded sum, because backward will read the same values. Each work-item
    // reads only what it wrote itself.
    residual += n * C;
    sum += n * C;
    for (int c = first; c < C; c += team_size)
      sum[c] = narrowed(widened(x[c]) + widened(residual[c]));
    x = sum;
  }
  const float inverse_C = 1.0f / (float)C;
  float mean = 0.0f;
  if (centred) {
    for (int c = first; c < C; c += team_size) mean += widened(x[c]);
    mean = team_sum(mean, parts) * inverse_C;
  }
  float squares = 0.0f;
  for (int c = first; c < C; c += team_size) {
    const float d = widened(x[c]) - mean;
    squares = fma(d, d, squares);
  }
  const float rstd = 1.0f / sqrt(fma(team_sum(squares, parts), inverse_C, epsilon));
  for (int c = first; c < C; c += team_size)
    y[c] = narrowed(
        fma((widened(x[c]) - mean) * rstd, widened(gamma[c]), beta ? widened(beta[c]) : 0.0f));
  if (first == 0) {
    if (centred) mean_of[n] = mean;
    rstd_of[n] = rstd;
  }
}

team_kernel void layer_norm_forward(__global const real* x, __global const real* residual,
                                    __global const real* gamma, __global const real* beta,
                                    __global real* y, __global real* sum, __global float* mean,
                                    __global float* rstd, long N, int C, float epsilon) {
  team_memory;
  norm_forward(1, team_parts, x, residual, gamma, beta, y, sum, mean, rstd, N, C, epsilon);
}

team_kernel void rms_norm_forward(__global const real* x, __global const real* residual,
                                  __global const real* gamma, __global real* y,
                                  __global real* sum, __global float* rstd, long N, int C,
                                  float epsilon) {
  team_memory;
  norm_forward(0, team_parts, x, residual, gamma, 0, y, sum, 0, rstd, N, C, epsilon);
}

/// dx of the team's row, plus dsum. `rounds_twice`: dx is also rounded before dsum is added.
static inline void norm_backward(int centred, __local float* parts, __global const real* dy,
                                 __global const real* x, __global const real* gamma,
                                 __global const real* dsum, __global const float* mean_of,
                                 __global const float* rstd_of, __global real* dx, long N, int C,
                                 int rounds_twice) {
  const long n = team_row();
  if (n >= N) return;
  const int first = team_rank();
  x += n * C;
  dy += n * C;
  dx += n * C;
  if (dsum) dsum += n * C;
  const float mean = centred ? mean_of[n] : 0.0f, rstd = rstd_of[n];
  float sum_g = 0.0f, sum_gs = 0.0f;
  for (int c = first; c < C; c += team_size) {
    const float weighted = widened(dy[c]) * widened(gamma[c]);
    sum_g += weighted;
    sum_gs = fma(weighted, (widened(x[c]) - mean) * rstd, sum_gs);
  }
  const float inverse_C = 1.0f / (float)C;
  const float mean_g = centred ? team_sum(sum_g, parts) * inverse_C : 0.0f;
  const float mean_gs = team_sum(sum_gs, parts) * inverse_C;
  for (int c = first; c < C; c += team_size) {
    const float scaled = (widened(x[c]) - mean) * rstd;
    const float weighted = widened(dy[c]) * widened(gamma[c]);
    const float slope = weighted - mean_g - scaled * mean_gs;
    const float direct = dsum ? widened(dsum[c]) : 0.0f;
    if (dsum && rounds_twice)
      dx[c] = narrowed(widened(narrowed(fma(slope, rstd, 0.0f))) + direct);
    else
      dx[c] = narrowed(fma(slope, rstd, direct));
  }
}

team_kernel void layer_norm_backward(__global const real* dy, __global const real* x,
                                     __global const real* gamma, __global const real* dsum,
                                     __global const float* mean, __global const float* rstd,
                                     __global real* dx, long N, int C, int rounds_twice) {
  team_memory;
  norm_backward(1, team_parts, dy, x, gamma, dsum, mean, rstd, dx, N, C, rounds_twice);
}

team_kernel void rms_norm_backward(__global const real* dy, __global const real* x,
                                   __global const real* gamma, __global const real* dsum,
                                   __global const float* rstd, __global real* dx, long N, int C,
                                   int rounds_twice) {
  team_memory;
  norm_backward(0, team_parts, dy, x, gamma, dsum, 0, rstd, dx, N, C, rounds_twice);
}

/// dgamma and dbeta over `rows` rows: one work-item for each column and part of the rows. Writes
/// the sums of dy * normalized x, and of dy, to gamma_sums and beta_sums [parts, C].
element_kernel void norm_columns(__global const real* dy, __global const real* x,
                                 __global const float* mean, __global const float* rstd,
                                 __global float* gamma_sums, __global float* beta_sums, long N,
                                 int C, long rows) {
  const long c = element_index();
  if (c >= C) return;
  const long part = get_group_id(1), begin = part * rows, end = min(begin + rows, N);
  float gamma_sum = 0.0f, beta_sum = 0.0f;
  for (long n = begin; n < end; ++n) {
    const float dy_c = widened(dy[n * C + c]);
    const float scaled = (widened(x[n * C + c]) - (mean ? mean[n] : 0.0f)) * rstd[n];
    gamma_sum = fma(dy_c, scaled, gamma_sum);
    beta_sum += dy_c;
  }
  if (gamma_sums) gamma_sums[part * C + c] = gamma_sum;
  if (beta_sums) beta_sums[part * C + c] = beta_sum;
}

/// out[c] = the sum over parts of sums[part, c], in rising order.
element_kernel void add_parts(__global const float* sums, __global float* out, long parts, int C) {
  const long c = element_index();
  if (c >= C) return;
  float sum = 0.0f;
  for (long p = 0; p < parts; ++p) sum += sums[p * C + c];
  out[c] = sum;
}
