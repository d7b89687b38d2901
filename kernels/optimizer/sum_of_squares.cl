#include "zerograd/kernels/hpu/tile.clh"

#define GRANULE 16
#define LIMBS 40
#define LIMB_BITS 26
#define LOWEST_EXPONENT (-520)
#define HALF_BITS (LIMB_BITS / 2)

/// A double that is not negative, as devices without doubles have it: m * 2^e, with the top bit of
/// 53 set unless it is 0.
typedef struct {
  ulong m;
  int e;
} wide;

/// Exact: 48 bits.
static inline wide square_of(float x) {
  const uint bits = as_uint(x), exponent = bits >> 23 & 0xff, fraction = bits & 0x7fffff;
  const ulong m = exponent ? fraction | 0x800000 : fraction;
  wide result = {m * m, 2 * ((int)(exponent ? exponent : 1) - 150)};
  if (result.m) {
    const int up = (int)clz(result.m) - 11;
    result.m <<= up;
    result.e -= up;
  }
  return result;
}

/// Rounded to nearest even, as IEEE 754 adds doubles. Ten bits below the last one keep what
/// rounding must know.
static inline wide add(wide a, wide b) {
  if (a.m == 0) return b;
  if (b.m == 0) return a;
  if (b.e > a.e) {
    const wide swapped = a;
    a = b;
    b = swapped;
  }
  const int apart = a.e - b.e;
  ulong low = b.m << 10;
  low = apart > 63 ? 1 : low >> apart | (ulong)((low & (((ulong)1 << apart) - 1)) != 0);
  const ulong sum = (a.m << 10) + low;
  const int excess = sum >> 63 ? 11 : 10;
  ulong m = sum >> excess;
  const ulong rest = sum & (((ulong)1 << excess) - 1), half_of = (ulong)1 << (excess - 1);
  if (rest > half_of || (rest == half_of && (m & 1))) ++m;
  int e = a.e + excess - 10;
  if (m >> 53) {
    m >>= 1;
    ++e;
  }
  const wide result = {m, e};
  return result;
}

/// 26 bits in two counters of 13, of which each takes 2^19 before it is full.
static inline void count(__local uint* counters, int limb, ulong digits) {
  atomic_add(counters + 2 * limb, (uint)digits & ((1 << HALF_BITS) - 1));
  atomic_add(counters + 2 * limb + 1, (uint)digits >> HALF_BITS);
}

/// Each group leaves [LIMBS + 1] integers: its limbs, and how many elements are not finite.
/// Integers add up the same in any order. The squares of f32 lie where no bit falls below the
/// lowest limb.
element_kernel void squares(__global const real* x, __global long* parts, long granules) {
  __local uint counters[2 * (LIMBS + 1)];
  const int own = (int)get_local_id(0);
  if (own < 2 * (LIMBS + 1)) counters[own] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (long g = element_index(); g < granules; g += (long)get_num_groups(0) * ZG_GROUP) {
    wide sums[GRANULE];
    uint non_finite = 0;
    for (int i = 0; i < GRANULE; ++i) {
      const float value = widened(x[g * GRANULE + i]);
      if (!isfinite(value)) ++non_finite;
      sums[i] = square_of(value);
    }
    if (non_finite) {
      atomic_add(counters + 2 * LIMBS, non_finite);
      continue;
    }
    for (int distance = GRANULE / 2; distance > 0; distance /= 2)
      for (int i = 0; i < distance; ++i) sums[i] = add(sums[i], sums[i + distance]);
    if (sums[0].m == 0) continue;
    const int place = sums[0].e - LOWEST_EXPONENT, limb = place / LIMB_BITS,
              shift = place % LIMB_BITS;
    const ulong mask = ((ulong)1 << LIMB_BITS) - 1;
    count(counters, limb, sums[0].m << shift & mask);
    count(counters, limb + 1, sums[0].m >> (LIMB_BITS - shift) & mask);
    count(counters, limb + 2, sums[0].m >> (2 * LIMB_BITS - shift));
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (own <= LIMBS)
    parts[(long)get_group_id(0) * (LIMBS + 1) + own] =
        (long)counters[2 * own] + ((long)counters[2 * own + 1] << HALF_BITS);
}

kernel_of(64) void add_squares(__global const long* parts, __global long* limbs,
                               __global long* non_finite, long groups) {
  const int own = (int)get_local_id(0);
  if (own > LIMBS) return;
  long sum = 0;
  for (long g = 0; g < groups; ++g) sum += parts[g * (LIMBS + 1) + own];
  if (own < LIMBS)
    limbs[own] += sum;
  else
    *non_finite += sum;
}
