#include "zerograd/kernels/hpu/tile.clh"

#define COLUMNS 128  // columns per work-group, adjacent in one row
#define column_kernel kernel_of(COLUMNS)
#define column_index() ((long)get_group_id(1) * COLUMNS + (long)get_local_id(0))

/// y[n] = weight[ids[n]] (+ position[first_position + n % period]). One work-group for each token
/// and 128 columns. An id outside [0, V) is reported and read as 0.
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
      const float position_value = widened(position[(first_position + n % period) * C + c]);  \
      y[n * C + c] = narrowed(widened(row) + position_value);                                 \
    } else {                                                                                  \
      y[n * C + c] = row;                                                                     \
    }                                                                                         \
  }

/// Links the tokens of each id: links[n] is the index of the next token with the same id, or N. For
/// a token that is not the first of its id links[n] is the bitwise complement of that index, so its
/// sign marks first tokens. A token whose id is outside [0, V) is reported and belongs to no list.
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
    long next = n + 1, previous = n - 1;                                                     \
    while (next < N && ids[next] != id) ++next;                                              \
    while (previous >= 0 && ids[previous] != id) --previous;                                 \
    links[n] = previous < 0 ? next : ~next;                                                  \
  }

/// Adds 0: -0 becomes 0, as in the rows of ids that occur.
element_kernel void add_zero(__global float* x, long n) {
  const long i = element_index();
  if (i < n) x[i] += 0.0f;
}

/// dweight[id] += sum of dy over the tokens of the id, in rising n. One work-group for each token;
/// only the work-group of an id's first token computes the sum.
#define SUM_BY_ID(id_type, id_c)                                                                   \
  column_kernel void sum_by_id_##id_type(__global const id_c* ids, __global const long* links,     \
                                         __global const real* dy, __global float* dweight, long N, \
                                         long C) {                                                 \
    const long first = get_group_id(0), c = column_index();                                        \
    long next = links[first];                                                                      \
    if (next < 0 || c >= C) return;                                                                \
    float sum = widened(dy[first * C + c]);                                                        \
    for (; next < N; next = ~links[next]) sum += widened(dy[next * C + c]);                        \
    dweight[(long)ids[first] * C + c] += sum;                                                      \
  }

FORWARD(i32, int)
FORWARD(i64, long)
LINK(i32, int)
LINK(i64, long)
SUM_BY_ID(i32, int)
SUM_BY_ID(i64, long)

/// dposition[p] = sum of dy over the tokens at position p. One work-group for each position and 128
/// columns.
column_kernel void sum_by_position(__global const real* dy, __global float* dposition, long N,
                                   long C, long period, long first_position) {
  const long p = get_group_id(0), t = p - first_position, c = column_index();
  if (c >= C) return;
  float sum = 0.0f;
  if (t >= 0 && t < period)
    for (long n = t; n < N; n += period) sum += widened(dy[n * C + c]);
  dposition[p * C + c] = sum;
}
