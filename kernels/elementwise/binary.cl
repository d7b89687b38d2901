#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/hpu/tile.clh"

// Integer arithmetic in the unsigned type wraps where the signed one would be undefined.
#if defined(ZG_I32)
typedef int real, wide;
typedef uint wrapping;
#elif defined(ZG_I64)
typedef long real, wide;
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

#define COMBINE(name, type, value)                                                        \
  element_kernel void binary_##name(__global const real* a_of, __global const real* b_of, \
                                    __global type* y_of, long n, nest_parameters) {       \
    const long i = element_index();                                                       \
    if (i >= n) return;                                                                   \
    const long3 at = operands_at(i);                                                      \
    const wide a = widened(a_of[at.s0]), b = widened(b_of[at.s1]);                        \
    const wrapping wa = (wrapping)a, wb = (wrapping)b;                                    \
    (void)wa, (void)wb;                                                                   \
    y_of[i] = value;                                                                      \
  }
#define quotient(a, b) ((a) / (b))
#define ZG_BINARY(name, y, da, db) COMBINE(name, real, narrowed((wide)(y)))
#define ZG_COMPARISON(name, y) COMBINE(name, uchar, y)
#if defined(ZG_I32) || defined(ZG_I64)
#define ZG_FLOATING(...)
#endif
#include "zerograd/kernels/elementwise/formulas.inc"

#if defined(ZG_I32) || defined(ZG_I64)

/// A divisor of 0 is reported and gives 0.
element_kernel void binary_divide(__global const real* a_of, __global const real* b_of,
                                  __global real* y, long n, nest_parameters, fault_parameters) {
  const long i = element_index();
  if (i >= n) return;
  const long3 at = operands_at(i);
  const real a = a_of[at.s0], b = b_of[at.s1];
  if (b == 0) report(fault_arguments, i, 0, NO_LIMIT);
  y[i] = b == -1 ? (real)((wrapping)0 - (wrapping)a) : b == 0 ? 0 : a / b;
}

#else

/// dy times both partial derivatives.
#define ZG_BINARY(name, y, da_value, db_value)                                              \
  element_kernel void slopes_##name(__global const real* a_of, __global const real* b_of,   \
                                    __global const real* dy_of, __global real* da,          \
                                    __global real* db, long n, nest_parameters) {           \
    const long i = element_index();                                                         \
    if (i >= n) return;                                                                     \
    const long3 at = operands_at(i);                                                        \
    const float a = widened(a_of[at.s0]), b = widened(b_of[at.s1]), dy = widened(dy_of[i]); \
    const float tied = a == b ? dy / 2.0f : dy;                                             \
    (void)tied;                                                                             \
    if (da) da[i] = narrowed(da_value);                                                     \
    if (db) db[i] = narrowed(db_value);                                                     \
  }

#include "zerograd/kernels/elementwise/formulas.inc"

#endif
