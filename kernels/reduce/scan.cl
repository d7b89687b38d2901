#include "zerograd/kernels/hpu/nest.clh"
#include "zerograd/kernels/reduce/sums.clh"

/// name_chunks: one work-item for each row and chunk of it (get_group_id(1)); neighbouring
/// work-items have neighbouring rows. Without y it writes the chunk's state to `parts`; else it
/// begins with the state there. name_before: replaces the state of each chunk by that of all chunks
/// before it, one work-item for each row.
#define SCAN(name, state, start, of, join, y_type, stored)                                     \
  element_kernel void name##_chunks(__global const real* x, __global y_type* y,                \
                                    __global state* parts, long rows, long extent, long inner, \
                                    long chunk, int reversed) {                                \
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
      if (y) y[at] = stored(joined);                                                           \
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
#if defined(ZG_I32) || defined(ZG_I64)
#define stored_sum(sum) ((real)(sum))
#else
#define stored_sum(sum) narrowed(sum_result(sum, 1.0f))

typedef long2 candidate;  // the bits of an f32, and its place
#define candidate_of(value, place) ((long2)(as_uint(value), place))
static inline candidate larger_of(candidate a, candidate b) {
  const float best = as_float((uint)a.s0), value = as_float((uint)b.s0);
  const int later = value >= best || value != value;
  return (long2)(later ? b.s0 : a.s0, later ? b.s1 : a.s1);  // SPIR-V chooses no vector by a scalar
}
#define widened_candidate(x, place) candidate_of(widened(x), place)
#define place_of(found) ((found).s1)
SCAN(largest, candidate, candidate_of(-INFINITY, 0), widened_candidate, larger_of, long, place_of)
#endif
SCAN(sum, sum_state, sum_start, term, sum_join, real, stored_sum)
