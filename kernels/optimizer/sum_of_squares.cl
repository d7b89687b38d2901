#include "zerograd/kernels/hpu/tile.clh"

// The exact sum of squares: kernels/README.md, "Sum of squares". Devices may lack doubles, so f64
// additions are done with integers. A work-item sums the squares of a granule of 16 elements, then
// adds this sum to the limbs of its work-group. add_squares() sums the limbs of all work-groups.
// The constants are those of SumOfSquares in optimizer.h.
#define GRANULE 16
#define LIMBS 40
#define LIMB_BITS 26
#define LOWEST_EXPONENT (-520)
#define HALF_BITS (LIMB_BITS / 2)

/// A double >= 0 as the integers of m * 2^e. m is 0, or has 53 bits with the top bit set.
typedef struct {
  ulong m;
  int e;
} soft_double;

/// x * x, exactly: 24 bits squared are 48 bits.
static inline soft_double square_of(float x) {
  const uint bits = as_uint(x), exponent = bits >> 23 & 0xff, fraction = bits & 0x7fffff;
  const ulong m = exponent ? fraction | 0x800000 : fraction;
  soft_double result = {m * m, 2 * ((int)(exponent ? exponent : 1) - 150)};
  if (result.m) {
    const int up = (int)clz(result.m) - 11;
    result.m <<= up;
    result.e -= up;
  }
  return result;
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
  const ulong sum = (a.m << 10) + low;
  const int excess = sum >> 63 ? 11 : 10;
  ulong m = sum >> excess;
  const ulong rest = sum & (((ulong)1 << excess) - 1), half_unit = (ulong)1 << (excess - 1);
  if (rest > half_unit || (rest == half_unit && (m & 1))) ++m;
  int e = a.e + excess - 10;
  if (m >> 53) {
    m >>= 1;
    ++e;
  }
  const soft_double result = {m, e};
  return result;
}

/// Adds 26 bits to a limb, kept as two 32-bit counters of 13 bits each: a counter can take 2^19
/// additions before it overflows, and square_groups.h limits a work-group to 2^18 granules.
static inline void add_to_limb(__local uint* counters, int limb, ulong digits) {
  atomic_add(counters + 2 * limb, (uint)digits & ((1 << HALF_BITS) - 1));
  atomic_add(counters + 2 * limb + 1, (uint)digits >> HALF_BITS);
}

/// Each work-group writes LIMBS + 1 integers to `parts`: its limbs and the number of elements that
/// are not finite. Integer additions give the same result in any order. No bit of a square of an
/// f32 lies below the lowest limb.
element_kernel void squares(__global const real* x, __global long* parts, long granules) {
  __local uint counters[2 * (LIMBS + 1)];
  const int item = (int)get_local_id(0);
  if (item < 2 * (LIMBS + 1)) counters[item] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (long g = element_index(); g < granules; g += (long)get_num_groups(0) * ZG_GROUP) {
    soft_double sums[GRANULE];
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
    const int bit = sums[0].e - LOWEST_EXPONENT, limb = bit / LIMB_BITS, shift = bit % LIMB_BITS;
    const ulong mask = ((ulong)1 << LIMB_BITS) - 1;
    add_to_limb(counters, limb, sums[0].m << shift & mask);
    add_to_limb(counters, limb + 1, sums[0].m >> (LIMB_BITS - shift) & mask);
    add_to_limb(counters, limb + 2, sums[0].m >> (2 * LIMB_BITS - shift));
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item <= LIMBS)
    parts[(long)get_group_id(0) * (LIMBS + 1) + item] =
        (long)counters[2 * item] + ((long)counters[2 * item + 1] << HALF_BITS);
}

/// Adds the integers of all work-groups to the result.
kernel_of(64) void add_squares(__global const long* parts, __global long* limbs,
                               __global long* non_finite, long groups) {
  const int item = (int)get_local_id(0);
  if (item > LIMBS) return;
  long sum = 0;
  for (long g = 0; g < groups; ++g) sum += parts[g * (LIMBS + 1) + item];
  if (item < LIMBS)
    limbs[item] += sum;
  else
    *non_finite += sum;
}
