#include "zerograd/kernels/hpu/tile.clh"

// LayerNorm and RMSNorm over rows x [N, C]. Memory bound. A work-group handles a row: a work-item
// has a span of columns, then one TEAM spans further, and so on. It keeps its first KEPT spans, 32
// bytes, in registers; of longer rows it reads the rest again.
#define TEAM 128
#define STEP (TEAM * SPAN)
#define KEPT (4 / (int)sizeof(real))
#ifdef ZG_F32  // the registers do not hold a second row of floats
#define SECOND_ROW(kept, row) load_span(row + c, count)
#else
#define SECOND_ROW(kept, row) kept
#endif
#ifdef ZG_SUB_GROUPS
#define team_kernel kernel_of(TEAM) __attribute__((intel_reqd_sub_group_size(ZG_SUB_GROUPS)))
#define PARTS (TEAM / ZG_SUB_GROUPS)
/// The sum over the work-group, in a fixed order. No other call may use `parts`.
static inline float team_sum(float x, __local float* parts) {
  const float sum = sub_group_reduce_add(x);
  if (get_sub_group_local_id() == 0) parts[get_sub_group_id()] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  float all = 0.0f;
  for (int i = 0; i < PARTS; ++i) all += parts[i];
  return all;
}
#else
#define team_kernel kernel_of(TEAM)
#define PARTS TEAM
#define team_sum group_sum
#endif

/// Executes the last argument for the work-item's spans of the row: columns [c, c + count). `kept`
/// declares the values of span k where they are kept, `read` those of a later one.
#define for_spans(kept, read, ...)                                                     \
  {                                                                                    \
    _Pragma("unroll") for (int k = 0; k < KEPT; ++k) {                                 \
      const int c = (k * TEAM + (int)get_local_id(0)) * SPAN, count = span_count(C - c); \
      if (count > 0) {                                                                 \
        kept;                                                                          \
        __VA_ARGS__                                                                    \
      }                                                                                \
    }                                                                                  \
    for (int c = (KEPT * TEAM + (int)get_local_id(0)) * SPAN; c < C; c += STEP) {      \
      const int count = span_count(C - c);                                              \
      read;                                                                            \
      __VA_ARGS__                                                                      \
    }                                                                                  \
  }

/// The forward pass over a row: LayerNorm if `centred`, else RMSNorm.
static inline void norm_forward(int centred, __local float* parts, __global const real* x,
                                __global const real* residual, __global const real* gamma,
                                __global const real* beta, __global real* y, __global real* sum,
                                __global float* mean_of, __global float* rstd_of, int C,
                                float epsilon) {
  const long n = get_group_id(0);
  x += n * C;
  y += n * C;
  if (residual) {
    residual += n * C;
    sum += n * C;
  }
  real8 row[KEPT];
  float mean = 0.0f, squares = 0.0f;
  for_spans(real8* const v = row + k, real8 later; real8* const v = &later, {
    *v = load_span(x + c, count);
    if (residual) {
      // The norm reads the rounded sum, because backward will read the same values.
      const real8 other = load_span(residual + c, count);
      for_span(e) (*v)[e] = narrowed(widened((*v)[e]) + widened(other[e]));
      store_span(sum + c, *v, count);
    }
    for_span(e) mean += widened((*v)[e]);
  })
  if (residual) x = sum;  // a work-item reads only what it wrote itself
  const float inverse_C = 1.0f / (float)C;
  mean = centred ? team_sum(mean, parts) * inverse_C : 0.0f;
  for_spans(const real8 v = row[k], const real8 v = load_span(x + c, count), {
    for_span(e) {
      const float d = widened(v[e]) - mean;
      if (e < count) squares = fma(d, d, squares);
    }
  })
  squares = team_sum(squares, parts + PARTS);
  const float rstd = 1.0f / sqrt(fma(squares, inverse_C, epsilon));
  for_spans(const real8 v = row[k], const real8 v = load_span(x + c, count), {
    const real8 scales = load_span(gamma + c, count);
    real8 shifts = 0, ys;
    if (beta) shifts = load_span(beta + c, count);
    for_span(e) ys[e] = narrowed(
        fma((widened(v[e]) - mean) * rstd, widened(scales[e]), beta ? widened(shifts[e]) : 0.0f));
    store_span(y + c, ys, count);
  })
  if (get_local_id(0) == 0) {
    if (centred) mean_of[n] = mean;
    rstd_of[n] = rstd;
  }
}

team_kernel void layer_norm_forward(__global const real* x, __global const real* residual,
                                    __global const real* gamma, __global const real* beta,
                                    __global real* y, __global real* sum, __global float* mean,
                                    __global float* rstd, int C, float epsilon) {
  __local float parts[2 * PARTS];
  norm_forward(1, parts, x, residual, gamma, beta, y, sum, mean, rstd, C, epsilon);
}

team_kernel void rms_norm_forward(__global const real* x, __global const real* residual,
                                  __global const real* gamma, __global real* y,
                                  __global real* sum, __global float* rstd, int C, float epsilon) {
  __local float parts[2 * PARTS];
  norm_forward(0, parts, x, residual, gamma, 0, y, sum, 0, rstd, C, epsilon);
}

/// dx of a row, plus dsum. `rounds_twice`: dx is also rounded before dsum is added.
static inline void norm_backward(int centred, __local float* parts, __global const real* dy,
                                 __global const real* x, __global const real* gamma,
                                 __global const real* dsum, __global const float* mean_of,
                                 __global const float* rstd_of, __global real* dx, int C,
                                 int rounds_twice) {
  const long n = get_group_id(0);
  x += n * C;
  dy += n * C;
  dx += n * C;
  if (dsum) dsum += n * C;
  const float mean = centred ? mean_of[n] : 0.0f, rstd = rstd_of[n];
  real8 x_row[KEPT], dy_row[KEPT];
  float sum_g = 0.0f, sum_gs = 0.0f;
  for_spans(real8* const v = x_row + k; real8* const dv = dy_row + k,
            real8 later; real8 dlater; real8* const v = &later; real8* const dv = &dlater, {
    *v = load_span(x + c, count);
    *dv = load_span(dy + c, count);
    const real8 scales = load_span(gamma + c, count);
    for_span(e) {
      const float weighted = widened((*dv)[e]) * widened(scales[e]);
      sum_g += weighted;
      sum_gs = fma(weighted, (widened((*v)[e]) - mean) * rstd, sum_gs);
    }
  })
  const float inverse_C = 1.0f / (float)C;
  const float mean_g = centred ? team_sum(sum_g, parts) * inverse_C : 0.0f;
  const float mean_gs = team_sum(sum_gs, parts + PARTS) * inverse_C;
  for_spans(const real8 v = x_row[k]; const real8 dv = SECOND_ROW(dy_row[k], dy),
            const real8 v = load_span(x + c, count); const real8 dv = load_span(dy + c, count), {
    const real8 scales = load_span(gamma + c, count);
    real8 directs = 0, dxs;
    if (dsum) directs = load_span(dsum + c, count);
    for_span(e) {
      const float scaled = (widened(v[e]) - mean) * rstd;
      const float slope = widened(dv[e]) * widened(scales[e]) - mean_g - scaled * mean_gs;
      const float direct = dsum ? widened(directs[e]) : 0.0f;
      if (dsum && rounds_twice)
        dxs[e] = narrowed(widened(narrowed(fma(slope, rstd, 0.0f))) + direct);
      else
        dxs[e] = narrowed(fma(slope, rstd, direct));
    }
    store_span(dx + c, dxs, count);
  })
}

team_kernel void layer_norm_backward(__global const real* dy, __global const real* x,
                                     __global const real* gamma, __global const real* dsum,
                                     __global const float* mean, __global const float* rstd,
                                     __global real* dx, int C, int rounds_twice) {
  __local float parts[2 * PARTS];
  norm_backward(1, parts, dy, x, gamma, dsum, mean, rstd, dx, C, rounds_twice);
}

team_kernel void rms_norm_backward(__global const real* dy, __global const real* x,
                                   __global const real* gamma, __global const real* dsum,
                                   __global const float* rstd, __global real* dx, int C,
                                   int rounds_twice) {
  __local float parts[2 * PARTS];
  norm_backward(0, parts, dy, x, gamma, dsum, 0, rstd, dx, C, rounds_twice);
}

// Sums over rows: a work-group has 32 spans of columns and divides the rows into 8 slices. Slice s
// adds rows s, s + 8 and so on; then the slices are added in rising order.
#define SLICES 8
#define SLICE_ITEMS (ZG_GROUP / SLICES)
#define slice() ((int)get_local_id(0) / SLICE_ITEMS)
#define slice_column() \
  (((int)get_group_id(0) * SLICE_ITEMS + (int)get_local_id(0) % SLICE_ITEMS) * SPAN)

/// Writes the sum of the slices to columns [c, c + count) of `to`. All work-items must call.
static inline void store_slices(float8 sum, __local float8* parts, __global float* to, int c,
                                int count) {
  barrier(CLK_LOCAL_MEM_FENCE);  // all have read the results of an earlier call
  parts[get_local_id(0)] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (slice() > 0 || count <= 0 || !to) return;
  for (int s = 1; s < SLICES; ++s) sum += parts[(int)get_local_id(0) + s * SLICE_ITEMS];
  store_span(to + c, sum, count);
}

/// dgamma and dbeta over the `rows` rows of part get_group_id(1): writes the sums of dy *
/// normalized x, and of dy, to gamma_sums and beta_sums [parts, C].
element_kernel void norm_columns(__global const real* dy, __global const real* x,
                                 __global const float* mean, __global const float* rstd,
                                 __global float* gamma_sums, __global float* beta_sums, long N,
                                 int C, long rows) {
  __local float8 parts[ZG_GROUP];
  const int c = slice_column(), count = span_count(C - c);
  const long part = get_group_id(1), begin = part * rows, end = min(begin + rows, N);
  float8 gamma_sum = 0.0f, beta_sum = 0.0f;
  for (long n = begin + slice(); n < end && count > 0; n += SLICES) {
    const real8 dys = load_span(dy + n * C + c, count), xs = load_span(x + n * C + c, count);
    const float row_mean = mean ? mean[n] : 0.0f, row_rstd = rstd[n];
    for_span(e) {
      const float scaled = (widened(xs[e]) - row_mean) * row_rstd;
      gamma_sum[e] = fma(widened(dys[e]), scaled, gamma_sum[e]);
      beta_sum[e] += widened(dys[e]);
    }
  }
  store_slices(gamma_sum, parts, gamma_sums ? gamma_sums + part * C : 0, c, count);
  store_slices(beta_sum, parts, beta_sums ? beta_sums + part * C : 0, c, count);
}

/// out[c] is the sum of sums[part, c] over the parts: for dgamma, and on the grid's second row for
/// dbeta; either may be null.
element_kernel void add_parts(__global const float* gamma_sums, __global float* dgamma,
                              __global const float* beta_sums, __global float* dbeta, long parts_of,
                              int C) {
  __local float8 parts[ZG_GROUP];
  __global const float* const sums = get_group_id(1) ? beta_sums : gamma_sums;
  __global float* const out = get_group_id(1) ? dbeta : dgamma;
  if (!out) return;
  const int c = slice_column(), count = span_count(C - c);
  float8 sum = 0.0f;
  for (long p = slice(); p < parts_of && count > 0; p += SLICES)
    sum += load_span(sums + p * C + c, count);
  store_slices(sum, parts, out, c, count);
}
