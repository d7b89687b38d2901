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

#define BINARY(name, type, value)                                                         \
  element_kernel void binary_##name(__global const real* a_of, __global const real* b_of, \
                                    __global type* y, long n, nest_parameters) {          \
    const long i = element_index();                                                       \
    if (i >= n) return;                                                                   \
    const long3 at = operands_at(i);                                                      \
    const wide a = widened(a_of[at.s0]), b = widened(b_of[at.s1]);                        \
    y[i] = value;                                                                         \
  }

BINARY(add, real, narrowed((wide)((wrapping)a + (wrapping)b)))
BINARY(subtract, real, narrowed((wide)((wrapping)a - (wrapping)b)))
BINARY(multiply, real, narrowed((wide)((wrapping)a*(wrapping)b)))
// A comparison with NaN is false, and a + b is NaN when either is.
BINARY(maximum, real, narrowed(a > b ? a : b >= a ? b : a + b))
BINARY(minimum, real, narrowed(a < b ? a : b <= a ? b : a + b))
BINARY(equal, uchar, a == b)
BINARY(not_equal, uchar, a != b)
BINARY(less, uchar, a < b)
BINARY(less_equal, uchar, a <= b)
BINARY(greater, uchar, a > b)
BINARY(greater_equal, uchar, a >= b)

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

BINARY(divide, real, narrowed(a / b))
BINARY(power, real, narrowed(pow(a, b)))

/// dy times both partial derivatives, as PyTorch defines them at ties and at 0.
#define SLOPES(name, da_value, db_value)                                                    \
  element_kernel void slopes_##name(__global const real* a_of, __global const real* b_of,   \
                                    __global const real* dy_of, __global real* da,          \
                                    __global real* db, long n, nest_parameters) {           \
    const long i = element_index();                                                         \
    if (i >= n) return;                                                                     \
    const long3 at = operands_at(i);                                                        \
    const float a = widened(a_of[at.s0]), b = widened(b_of[at.s1]), dy = widened(dy_of[i]); \
    const float half_at_tie = a == b ? dy / 2.0f : dy;                                      \
    (void)half_at_tie;                                                                      \
    if (da) da[i] = narrowed(da_value);                                                     \
    if (db) db[i] = narrowed(db_value);                                                     \
  }

SLOPES(add, dy, dy)
SLOPES(subtract, dy, -dy)
SLOPES(multiply, (dy * b), (dy * a))
SLOPES(divide, (dy / b), (-dy * (a / b) / b))
SLOPES(power, (b == 0.0f ? 0.0f : dy * b * pow(a, b - 1.0f)),
       (a == 0.0f && b >= 0.0f ? 0.0f : dy * pow(a, b) * log(a)))
SLOPES(maximum, (a < b ? 0.0f : half_at_tie), (a > b ? 0.0f : half_at_tie))
SLOPES(minimum, (a > b ? 0.0f : half_at_tie), (a < b ? 0.0f : half_at_tie))

#endif
