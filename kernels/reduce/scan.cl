#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/reduce/sums.clh"

/// name_chunks: one work-item for each row and chunk of it (get_group_id(1)); neighbouring
/// work-items have neighbouring rows. Without y it writes the chunk's state to `parts`; else it
/// begins with the state there. name_before: replaces the state of each chunk by that of all chunks
/// before it, one work-item for each row.
#define SCAN(name, state, start, of, join, y_type, stored, write_value)                        \
  element_kernel void name##_chunks(__global const real* x, __global y_type* y,                \
                                    __global real* values, __global state* parts, long rows,   \
                                    long extent, long inner, long chunk, int reversed) {       \
    const long row = element_index();                                                          \
    if (row >= rows) return;                                                                   \
    const long outer = quotient(row, inner);                                                   \
    const long begin = outer * extent * inner + row - outer * inner;                           \
    const long first = get_group_id(1) * chunk, last = min(first + chunk, extent);             \
    const long own = get_group_id(1) * rows + row;                                             \
    state joined = start;                                                                      \
    if (y && parts) joined = parts[own];                                                       \
    for (long i = first; i < last; ++i) {                                                      \
      const long place = reversed ? extent - 1 - i : i, at = begin + place * inner;            \
      joined = join(joined, of(x[at], place));                                                 \
      if (!y) continue;                                                                        \
      y[at] = stored(joined);                                                                  \
      write_value(joined, at);                                                                 \
    }                                                                                          \
    if (!y) parts[own] = joined;                                                               \
  }                                                                                            \
  element_kernel void name##_before(__global state* parts, long rows, long chunks) {           \
    const long row = element_index();                                                          \
    if (row >= rows) return;                                                                   \
    state before = start;                                                                      \
    for (long at = row; at < rows * chunks; at += rows) {                                      \
      const state joined = join(before, parts[at]);                                            \
      parts[at] = before;                                                                      \
      before = joined;                                                                         \
    }                                                                                          \
  }

#define term(x, place) sum_of(x)
#define no_value(sum, at) (void)values
#if defined(ZG_I32) || defined(ZG_I64)
#define stored_sum(sum) ((real)(sum))
#define bits_of(x) ((long)(x))
#define value_of(bits) (bits)
#define least LONG_MIN
#define narrowed (real)
typedef long value;
#define is_nan(x) 0
#else
#define stored_sum(sum) narrowed(sum_result(sum, 1.0f))
#define bits_of(x) as_uint(widened(x))
#define value_of(bits) as_float((uint)(bits))
#define least as_uint(-INFINITY)
typedef float value;
#define is_nan isnan
#endif

typedef long2 candidate;  // the bits of an element, widened, and its place
static inline candidate larger_of(candidate a, candidate b) {
  const value best = value_of(a.s0), other = value_of(b.s0);
  const int later = other >= best || is_nan(other);
  return (long2)(later ? b.s0 : a.s0, later ? b.s1 : a.s1);  // SPIR-V chooses no vector by a scalar
}
#define candidate_of(x, place) ((long2)(bits_of(x), place))
#define place_of(found) ((found).s1)
#define write_value(found, at) values[at] = narrowed(value_of((found).s0))
SCAN(largest, candidate, ((long2)(least, 0)), candidate_of, larger_of, long, place_of, write_value)
SCAN(sum, sum_state, sum_start, term, sum_join, real, stored_sum, no_value)
