// One kernel for each kind of built-in function, for builtins_test.cpp.

// Row r of `out` is the r-th function of x.
__kernel void unary(__global float* out, __global const float* x) {
  const size_t i = get_global_id(0), n = get_global_size(0);
  const float v = x[i];
  const float values[] = {exp(v),  exp2(v),  expm1(v), log(v),  log2(v),  log1p(v), sin(v),
                          cos(v),  tanh(v),  erf(v),   sqrt(v), rsqrt(v), fabs(v),  floor(v),
                          ceil(v), trunc(v), round(v), rint(v), 1.0f / v, v / 3.0f};
  for (size_t r = 0; r < sizeof values / sizeof values[0]; ++r) out[r * n + i] = values[r];
}

__kernel void binary(__global float* out, __global const float* x, __global const float* y) {
  const size_t i = get_global_id(0), n = get_global_size(0);
  const float values[] = {pow(x[i], y[i]),       fmin(x[i], y[i]),         fmax(x[i], y[i]),
                          fmod(x[i], y[i]),      copysign(x[i], y[i]),     fma(x[i], y[i], x[i]),
                          mad(x[i], y[i], x[i]), clamp(x[i], -1.0f, 1.0f), x[i] * y[i] + x[i]};
  for (size_t r = 0; r < sizeof values / sizeof values[0]; ++r) out[r * n + i] = values[r];
}

__kernel void questions(__global int* out, __global const float* x) {
  const size_t i = get_global_id(0), n = get_global_size(0);
  const float v = x[i];
  const int values[] = {isnan(v),
                        isinf(v),
                        isfinite(v),
                        signbit(v),
                        convert_int(clamp(v, -100.0f, 100.0f)),
                        convert_int_rte(clamp(v, -100.0f, 100.0f)),
                        convert_uchar_sat(v),
                        as_int(v),
                        (int)select(1.0f, 2.0f, v > 0.0f)};
  for (size_t r = 0; r < sizeof values / sizeof values[0]; ++r) out[r * n + i] = values[r];
}

__kernel void integers(__global uint* out, __global const uint* x, __global const uint* y) {
  const size_t i = get_global_id(0), n = get_global_size(0);
  const uint values[] = {mul_hi(x[i], y[i]),
                         popcount(x[i]),
                         clz(x[i]),
                         rotate(x[i], y[i]),
                         min(x[i], y[i]),
                         max(x[i], y[i]),
                         (uint)min((int)x[i], (int)y[i]),
                         abs((int)x[i]),
                         (uint)mul_hi((int)x[i], (int)y[i]),
                         (uint)(mul_hi((ulong)x[i] << 32 | y[i], (ulong)y[i] << 32 | x[i]) >> 32)};
  for (size_t r = 0; r < sizeof values / sizeof values[0]; ++r) out[r * n + i] = values[r];
}

// Eight values by each work-item, through vectors of every kind of memory.
__kernel void vectors(__global float* out, __global const float* x, __global const ushort* h,
                      __local float* room) {
  const size_t i = get_global_id(0), l = get_local_id(0);
  const float8 v = vload8(i, x);
  vstore4(v.lo, 2 * l, room);
  vstore4(v.hi, 2 * l + 1, room);
  barrier(CLK_LOCAL_MEM_FENCE);
  const size_t other = get_local_size(0) - 1 - l;  // the work-item at the other end
  float8 w = (float8)(vload4(2 * other, room), vload4(2 * other + 1, room));
  w = fma(w, (float8)2.0f, convert_float8(vload8(i, h)));
  w = select(w, -w, isless(w, (float8)0.0f));
  vstore8(w + as_float8(as_int8(max(v, (float8)0.0f))), i, out);
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
  atomic_inc(&counts[1]);
  atomic_max(&counts[2], v);
  atomic_min(&counts[3], v);
  atomic_or(&counts[4], 1 << (v & 7));
  for (int old = counts[5];;) {  // a sum again, by compare and exchange
    const int seen = atomic_cmpxchg(&counts[5], old, old + v);
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
