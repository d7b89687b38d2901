#include "zerograd/kernels/hpu/tile.clh"

#define COLUMNS 128  // columns per work-group, adjacent in one row
#define column_kernel kernel_of(COLUMNS)
#define column_index() ((long)get_group_id(1) * COLUMNS + (long)get_local_id(0))

/// Groups along x have a token each. An id that is outside is reported and read as 0.
#define FORWARD(id_type, id_c)                                                                \
  column_kernel void forward_##id_type(                                                       \
      __global const id_c* ids, __global const real* weight, __global const real* position,   \
      __global real* y, long V, long C, long period, long first_position, fault_parameters) { \
    const long n = get_group_id(0), c = column_index();                                       \
    if (c >= C) return;                                                                       \
    long id = ids[n];                                                                         \
    if (id < 0 || id >= V) {                                                                  \
      if (c == 0) report(fault_arguments, n, id, V);                                          \
      if (V == 0) return;                                                                     \
      id = 0;                                                                                 \
    }                                                                                         \
    const real row = weight[id * C + c];                                                      \
    if (position) {                                                                           \
      const float added = widened(position[(first_position + n % period) * C + c]);           \
      y[n * C + c] = narrowed(widened(row) + added);                                          \
    } else {                                                                                  \
      y[n * C + c] = row;                                                                     \
    }                                                                                         \
  }

/// Which token is the next of the same id, N behind the last one; of a token that is not the first
/// of its id, and of one whose id is outside, the complement, which is negative.
#define LINK(id_type, id_c)                                                                  \
  element_kernel void link_##id_type(__global const id_c* ids, __global long* links, long N, \
                                     long V, fault_parameters) {                             \
    const long n = element_index();                                                          \
    if (n >= N) return;                                                                      \
    const long id = ids[n];                                                                  \
    if (id < 0 || id >= V) {                                                                 \
      report(fault_arguments, n, id, V);                                                     \
      links[n] = ~N;                                                                         \
      return;                                                                                \
    }                                                                                        \
    long next = n + 1, before = n - 1;                                                       \
    while (next < N && ids[next] != id) ++next;                                              \
    while (before >= 0 && ids[before] != id) --before;                                       \
    links[n] = before < 0 ? next : ~next;                                                    \
  }

/// The group of an id's first token sums the rows of all of its tokens, in rising n.
#define SUM_BY_ID(id_type, id_c)                                                                   \
  column_kernel void sum_by_id_##id_type(__global const id_c* ids, __global const long* links,     \
                                         __global const real* dy, __global float* dweight, long N, \
                                         long C) {                                                 \
    const long first = get_group_id(0), c = column_index();                                        \
    long next = links[first];                                                                      \
    if (next < 0 || c >= C) return;                                                                \
    float sum = widened(dy[first * C + c]);                                                        \
    for (; next < N; next = ~links[next]) sum += widened(dy[next * C + c]);                        \
    dweight[(long)ids[first] * C + c] = sum;                                                       \
  }

FORWARD(i32, int)
FORWARD(i64, long)
LINK(i32, int)
LINK(i64, long)
SUM_BY_ID(i32, int)
SUM_BY_ID(i64, long)

/// Groups along x have a position each.
column_kernel void sum_by_position(__global const real* dy, __global float* dposition, long N,
                                   long C, long period, long first_position) {
  const long p = get_group_id(0), t = p - first_position, c = column_index();
  if (c >= C) return;
  float sum = 0.0f;
  if (t >= 0 && t < period)
    for (long n = t; n < N; n += period) sum += widened(dy[n * C + c]);
  dposition[p * C + c] = sum;
}
