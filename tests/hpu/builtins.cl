// One kernel for each kind of built-in function, for builtins_test.cpp.

// Row r of `out` is the r-th function of x and y.
__kernel void floats(__global float* out, __global const float* x, __global const float* y) {
  const size_t i = get_global_id(0), n = get_global_size(0);
  const float v = x[i], w = y[i];
  const float values[] = {exp(v),
                          expm1(v),
                          log(v),
                          log1p(v),
                          log2(v),
                          atan(v),
                          sin(v),
                          cos(v),
                          tanh(v),
                          erf(v),
                          erfc(v),
                          sqrt(v),
                          fabs(v),
                          floor(v),
                          rint(v),
                          fmod(v, w),
                          1.0f / v,
                          v / 3.0f,
                          pow(v, w),
                          fmin(v, w),
                          fmax(v, w),
                          fma(v, w, v),
                          v * w + v,
                          exp((float8)(0, 1, v, 3, 4, 5, 6, 7)).s2,
                          fma((float8)w, (float8)(v), (float8)(w)).s7,
                          native_exp2(v),
                          native_recip(v)};
  for (size_t r = 0; r < sizeof values / sizeof values[0]; ++r) out[r * n + i] = values[r];
}

__kernel void questions(__global int* out, __global const float* x, __global const float* y) {
  const size_t i = get_global_id(0), n = get_global_size(0);
  const int values[] = {isnan(x[i]), isinf(x[i]), isfinite(x[i]), as_int(y[i])};
  for (size_t r = 0; r < sizeof values / sizeof values[0]; ++r) out[r * n + i] = values[r];
}

__kernel void integers(__global uint* out, __global const uint* x, __global const uint* y) {
  const size_t i = get_global_id(0), n = get_global_size(0);
  const long v = (long)x[i] << 20, w = (long)y[i] - 2147483648l;
  const uint values[] = {mul_hi(x[i], y[i]), (uint)min(v, w), (uint)max(v, w),
                         (uint)clamp(w, -1000l, v), (uint)clz(v)};
  for (size_t r = 0; r < sizeof values / sizeof values[0]; ++r) out[r * n + i] = values[r];
}

typedef struct {
  int from;
  short parts[3];
  float scale;
} Source;

// Arguments of every size, and a struct.
__kernel void arguments(__global float* out, __global const float* x, uchar a, short b, int c,
                        long d, float e, int4 f, long8 g, Source source) {
  const size_t i = get_global_id(0);
  source.from += (int)i;  // its own copy
  out[i] = a + b + c + d + e + f.s0 + f.s3 + g.s1 + g.s7 +
           x[source.from + source.parts[i % 3]] * source.scale;
}

// The indices of a work-item in three dimensions.
__kernel void places(__global int* out) {
  const size_t x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
  const size_t i = (z * get_global_size(1) + y) * get_global_size(0) + x;
  out[i] = (int)(get_group_id(0) + 10 * get_group_id(1) + 100 * get_group_id(2) +
                 1000 * get_local_id(0) + 10000 * get_local_id(1) + 100000 * get_local_id(2) +
                 1000000 * (get_num_groups(0) == get_global_size(0) / get_local_size(0)));
}

__kernel void atomics(__global int* counts, __global const int* x) {
  const int v = x[get_global_id(0)];
  atomic_add(&counts[0], v);
  for (int old = counts[1];;) {  // a sum again, by compare and exchange
    const int seen = atomic_cmpxchg(&counts[1], old, old + v);
    if (seen == old) break;
    old = seen;
  }
}

// The sum of a group's values, by halves; an array for the reverse order.
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void tree(__global float* sums,
                                                                   __global float* reversed,
                                                                   __global const float* x) {
  __local float parts[64];
  __local float mirror[64];
  const uint l = (uint)get_local_id(0);
  parts[l] = mirror[63 - l] = x[get_global_id(0)];
  for (uint s = 32; s; s >>= 1) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (l < s) parts[l] += parts[l + s];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (l == 0) sums[get_group_id(0)] = parts[0];
  reversed[get_global_id(0)] = mirror[l];
}
