#include "zerograd/kernels/hpu/nest.clh"

// Integer arithmetic in the unsigned type wraps where the signed one would be undefined.
#if defined(ZG_I32)
typedef int real, wide;
typedef int8 real8;
typedef uint wrapping;
#elif defined(ZG_I64)
typedef long real, wide;
typedef long8 real8;
typedef ulong wrapping;
#else
typedef float wide, wrapping;
#endif
#if defined(ZG_I32) || defined(ZG_I64)
#define widened
#define narrowed
#endif

#define nest_parameters int rank, long8 extents, long8 a_strides, long8 b_strides
#define operands_at(i) located(i, rank, extents, a_strides, b_strides, (long8)(0))

// Statements for `step` neighbours at a time, from element i on: the span if it is_run(), else one
// element, whose values are then those of all elements of a vector.
#define for_runs()                                                                              \
  take_span(n);                                                                                 \
  const int run = is_run(count, rank, extents.s0, (long3)(a_strides.s0, b_strides.s0, 0));      \
  const int step = run ? SPAN : 1;                                                              \
  for (long i = begin; i < begin + count; i += step)
#define load_operands()                                                  \
  const long3 at = operands_at(i);                                       \
  const real8 as = load_run(a_of + at.s0, run && a_strides.s0 != 0);     \
  const real8 bs = load_run(b_of + at.s1, run && b_strides.s0 != 0)

#define COMBINE(name, type, value)                                                        \
  element_kernel void binary_##name(__global const real* a_of, __global const real* b_of, \
                                    __global type* y_of, long n, nest_parameters) {       \
    for_runs() {                                                                          \
      load_operands();                                                                    \
      type##8 ys;                                                                         \
      for_span(e) {                                                                       \
        const wide a = widened(as[e]), b = widened(bs[e]);                                \
        const wrapping wa = (wrapping)a, wb = (wrapping)b;                                \
        (void)wa, (void)wb;                                                               \
        ys[e] = value;                                                                    \
      }                                                                                   \
      store_span(y_of + i, ys, step);                                                     \
    }                                                                                     \
  }
#define quotient(a, b) ((a) / (b))
#define ZG_BINARY(name, y, da, db) COMBINE(name, real, narrowed((wide)(y)))
#define ZG_COMPARISON(name, y) COMBINE(name, uchar, y)
#if defined(ZG_I32) || defined(ZG_I64)
#define ZG_FLOATING(...)
#else
/// a - floor(a / b) b, exactly: the remainder with the sign of b.
static inline float modulo(float a, float b) {
  const float rest = fmod(a, b);
  return rest != 0.0f && (b < 0.0f) != (rest < 0.0f) ? rest + b : rest;
}
/// floor(a / b) of the exact quotient; a / b if b is 0.
static inline float whole_quotient(float a, float b) {
  if (b == 0.0f) return a / b;
  const float rest = fmod(a, b), whole = rint((a - rest) / b);
  return rest != 0.0f && (b < 0.0f) != (rest < 0.0f) ? whole - 1.0f : whole;
}
#endif
#include "zerograd/kernels/elementwise/formulas.inc"

#if defined(ZG_I32) || defined(ZG_I64)

/// A divisor of 0 is reported and gives 0; `by_minus_1` does not overflow.
#define DIVIDE(name, by_minus_1, value)                                                      \
  element_kernel void binary_##name(__global const real* a_of, __global const real* b_of,    \
                                    __global real* y, long n, nest_parameters,               \
                                    fault_parameters) {                                      \
    take_span(n);                                                                            \
    for (long i = begin; i < begin + count; ++i) {                                           \
      const long3 at = operands_at(i);                                                       \
      const real a = a_of[at.s0], b = b_of[at.s1];                                           \
      if (b == 0) report(fault_arguments, i, 0, NO_LIMIT);                                   \
      y[i] = b == -1 ? (by_minus_1) : b == 0 ? 0 : (value);                                  \
    }                                                                                        \
  }
DIVIDE(divide, (real)((wrapping)0 - (wrapping)a), a / b)
DIVIDE(remainder, 0, a % b != 0 && (a % b < 0) != (b < 0) ? a % b + b : a % b)

#else

/// dy times both partial derivatives.
#define ZG_BINARY(name, y, da_value, db_value)                                            \
  element_kernel void slopes_##name(__global const real* a_of, __global const real* b_of, \
                                    __global const real* dy_of, __global real* da,        \
                                    __global real* db, long n, nest_parameters) {         \
    for_runs() {                                                                          \
      load_operands();                                                                    \
      const real8 dys = load_span(dy_of + i, step);                                       \
      real8 das, dbs;                                                                     \
      for_span(e) {                                                                       \
        const float a = widened(as[e]), b = widened(bs[e]), dy = widened(dys[e]);         \
        const float tied = a == b ? dy / 2.0f : dy;                                       \
        (void)tied;                                                                       \
        das[e] = narrowed(da_value);                                                      \
        dbs[e] = narrowed(db_value);                                                      \
      }                                                                                   \
      if (da) store_span(da + i, das, step);                                              \
      if (db) store_span(db + i, dbs, step);                                              \
    }                                                                                     \
  }

#include "zerograd/kernels/elementwise/formulas.inc"

#endif
