#include "zerograd/kernels/hpu/tile.clh"

// The exact sum of squares: kernels/README.md, "Sum of squares"; and the factor of the gradients
// that follows from it. Devices may lack doubles, so f64 operations are done with integers. A
// work-item sums the squares of a granule of 16 elements, then adds this sum to the limbs of its
// work-group. The constants are those of SumOfSquares in optimizer.h.
#define GRANULE 16
#define LIMBS 40
#define LIMB_BITS 26
#define LIMB_MASK (((ulong)1 << LIMB_BITS) - 1)
#define LOWEST_EXPONENT (-520)
#define HALF_BITS (LIMB_BITS / 2)

/// A double >= 0 as the integers of m * 2^e. m is 0, or has 53 bits with the top bit set. The
/// exponents of doubles that are not normal do not occur.
typedef struct {
  ulong m;
  int e;
} soft_double;

/// m / 2^bits rounded to nearest even.
static inline ulong rounded_shift(ulong m, int bits) {
  const ulong rest = m & (((ulong)1 << bits) - 1), half_unit = (ulong)1 << (bits - 1);
  m >>= bits;
  return rest > half_unit || (rest == half_unit && (m & 1)) ? m + 1 : m;
}

/// m * 2^e rounded to nearest even. The lowest of more than 54 bits is also set for bits below it.
static inline soft_double rounded(ulong m, int e) {
  const int excess = 11 - (int)clz(m);
  soft_double result = {excess > 0 ? rounded_shift(m, excess) : m << -excess, e + excess};
  if (result.m >> 53) {
    result.m >>= 1;
    ++result.e;
  }
  return result;
}

/// x * x, exactly: 24 bits squared are 48 bits.
static inline soft_double square_of(float x) {
  const uint bits = as_uint(x), exponent = bits >> 23 & 0xff, fraction = bits & 0x7fffff;
  const ulong m = exponent ? fraction | 0x800000 : fraction;
  return rounded(m * m, 2 * ((int)(exponent ? exponent : 1) - 150));
}

/// a + b rounded to nearest even, as IEEE 754 adds doubles. Ten more bits below the last one are
/// enough to round correctly, because the lowest of them is set if any bit below it was.
static inline soft_double add(soft_double a, soft_double b) {
  if (a.m == 0) return b;
  if (b.m == 0) return a;
  if (b.e > a.e) {
    const soft_double swapped = a;
    a = b;
    b = swapped;
  }
  const int shift_down = a.e - b.e;
  ulong low = b.m << 10;
  low = shift_down > 63 ? 1
                        : low >> shift_down | (ulong)((low & (((ulong)1 << shift_down) - 1)) != 0);
  return rounded((a.m << 10) + low, a.e - 10);
}

/// Adds 26 bits to a limb, kept as two 32-bit counters of 13 bits each: a counter can take 2^19
/// additions before it overflows, and square_groups.h limits a work-group to 2^18 granules.
static inline void add_to_limb(__local uint* counters, int limb, ulong digits) {
  atomic_add(counters + 2 * limb, (uint)digits & ((1 << HALF_BITS) - 1));
  atomic_add(counters + 2 * limb + 1, (uint)digits >> HALF_BITS);
}

/// Adds to a sum of the launch by two additions of 32 bits, of which the second has the carry.
static inline void add_to_sum(volatile __global uint* sum, ulong value) {
  if (value == 0) return;
  const uint low = (uint)value, before = atomic_add(sum, low);
  atomic_add(sum + 1, (uint)(value >> 32) + (uint)(before + low < low));
}

/// Up to 16 tensors: their addresses and numbers of granules. `arena` is as in fold_gradient.cl.
/// Each work-group adds its limbs, and the number of elements that are not finite. Integer
/// additions give the same result in any order. No bit of a square of an f32 lies below the lowest
/// limb.
element_kernel void squares(__global const uchar* arena, long16 xs, long16 limbs, long16 non_finite,
                            long16 granules, long16 ends) {
  (void)arena;
  __local uint counters[2 * (LIMBS + 1)];
  const int item = (int)get_local_id(0);
  if (item < 2 * (LIMBS + 1)) counters[item] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  long begin;
  const int k = tensor_of_group(ends, &begin);
  const long step = (ends[k] - (k > 0 ? ends[k - 1] : 0)) * ZG_GROUP;
  __global const real* const x = (__global const real*)xs[k];
  for (long g = begin; g < granules[k]; g += step) {
    soft_double sums[GRANULE];
    uint bad = 0;
    for (int i = 0; i < GRANULE; ++i) {
      const float value = widened(x[g * GRANULE + i]);
      if (!isfinite(value)) ++bad;
      sums[i] = square_of(value);
    }
    if (bad) {
      atomic_add(counters + 2 * LIMBS, bad);
      continue;
    }
    for (int distance = GRANULE / 2; distance > 0; distance /= 2)
      for (int i = 0; i < distance; ++i) sums[i] = add(sums[i], sums[i + distance]);
    if (sums[0].m == 0) continue;
    const int bit = sums[0].e - LOWEST_EXPONENT, limb = bit / LIMB_BITS, shift = bit % LIMB_BITS;
    add_to_limb(counters, limb, sums[0].m << shift & LIMB_MASK);
    add_to_limb(counters, limb + 1, sums[0].m >> (LIMB_BITS - shift) & LIMB_MASK);
    add_to_limb(counters, limb + 2, sums[0].m >> (2 * LIMB_BITS - shift));
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item <= LIMBS)
    add_to_sum((volatile __global uint*)(item < LIMBS ? limbs[k] + item * 8 : non_finite[k]),
               counters[2 * item] + ((ulong)counters[2 * item + 1] << HALF_BITS));
}

// --- the factor of the gradients ---

static inline soft_double soft(ulong bits) {  // of a normal double
  const soft_double x = {(bits & (((ulong)1 << 52) - 1)) | (ulong)1 << 52,
                         (int)(bits >> 52) - 1075};
  return x;
}

/// a / b.
static inline soft_double quotient(soft_double a, soft_double b) {
  ulong result = 0, rest = a.m;
  for (int i = 0; i < 56; ++i) {
    const bool bit = rest >= b.m;
    result = result << 1 | bit;
    rest = (bit ? rest - b.m : rest) << 1;
  }
  return rounded(result << 1 | (rest != 0), a.e - b.e - 56);
}

/// The square root of a, two bits of a for each of the result.
static inline soft_double root(soft_double a) {
  const ulong m = a.m << (a.e & 1);  // at most 54 bits
  ulong result = 0, rest = 0;
  for (int at = 52; at > -60; at -= 2) {
    rest = rest << 2 | (at >= 0 ? m >> at & 3 : 0);
    const ulong step = result << 2 | 1;
    const bool bit = rest >= step;
    result = result << 1 | bit;
    rest = bit ? rest - step : rest;
  }
  return rounded(result << 1 | (rest != 0), (a.e - (a.e & 1)) / 2 - 30);
}

/// The nearest double of the fixed-point number, as value_of_limbs() computes it: the highest digit
/// that is not 0 and the three below it, the lowest with a bit for any below.
static inline soft_double value_of(__global const long* limbs) {
  soft_double sum = {0, 0};
  ulong high = 0, low = 0, carry = 0;  // two digits each
  for (int i = 0; i < LIMBS + 2; ++i) {
    if (i < LIMBS) carry += (ulong)limbs[i];
    low = (high & LIMB_MASK) << LIMB_BITS | low >> LIMB_BITS | (ulong)((low & LIMB_MASK) != 0);
    high = (carry & LIMB_MASK) << LIMB_BITS | high >> LIMB_BITS;
    if (carry & LIMB_MASK)
      sum = add(rounded(high, LOWEST_EXPONENT + LIMB_BITS * (i - 1)),
                rounded(low, LOWEST_EXPONENT + LIMB_BITS * (i - 3)));
    carry >>= LIMB_BITS;
  }
  return sum;
}

/// Clipping::factor() of the norm: of the doubles `clip_norm` and `divisor`, by their bits. Without
/// clipping it is `unclipped`.
element_kernel void scale_gradients(__global const long* limbs, __global const long* non_finite,
                                    long count, __global float* scale, ulong clip_norm,
                                    ulong divisor, float unclipped, __global const long* fault) {
  __local int bad;
  if (get_local_id(0) == 0) bad = fault[0] != 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (long i = get_local_id(0); i < count; i += ZG_GROUP)
    if (non_finite[i] != 0) bad = 1;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (get_local_id(0) != 0) return;
  *scale = bad ? NAN : unclipped;
  if (bad || clip_norm == 0) return;
  const soft_double millionth = {0x10c6f7a0b5ed8d, -72};
  const soft_double norm = quotient(root(value_of(limbs)), soft(divisor));
  const soft_double ratio = quotient(soft(clip_norm), add(norm, millionth));
  if (ratio.e >= -52) return;  // at least 1
  const soft_double factor = quotient(ratio, soft(divisor));
  const int drop = max(29, -149 - factor.e);  // bits below those of the f32, which may be subnormal
  *scale =
      drop > 53
          ? 0.0f
          : as_float(((uint)(factor.e + drop + 149) << 23) + (uint)rounded_shift(factor.m, drop));
}
