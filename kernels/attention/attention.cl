#include "zerograd/kernels/attention/attention.clh"

// Attention for every Level Zero device: it computes in f32 and uses no sub-groups.
//
// A work-group of 8 teams of 32 work-items (lanes) computes the results of 8 * ROWS rows of one
// head, its resident rows: queries for out and dq, keys for dk and dv. The rows of the other kind
// pass through one tile in local memory, 32 at a time. For dot products a lane reads one row of the
// tile; for weighted sums a lane handles every 32nd column. Rows of more than 256 columns pass
// through the tile in slices of 256 columns. Each output is written by one work-group in a fixed
// order, so repeated runs give the same bits. attention_of_size.clh holds the kernels; it is
// included once for each size of heads.
#define LANES 32
#define TEAMS 8
#define ITEMS (LANES * TEAMS)

/// Copies rows [first, first + count) and `width` columns of a head to local memory as floats.
/// `head` points at the first column of the slice. Rows from `limit` on and columns from D on
/// become 0.
force_inline void load_rows(__local float* to, int stride, int width, int count,
                            __global const real* head, long token, long first, long limit, int D) {
  for (int i = get_local_id(0); i < count * width; i += ITEMS) {
    const int row = i / width, d = i % width;
    to[row * stride + d] =
        first + row < limit && d < D ? widened(head[(first + row) * token + d]) : 0.0f;
  }
}

/// row_dots[b, h, t] = dout_t . out_t, one team for each query. `batch`, `head` and `token` are
/// strides of out and dout.
kernel_of(ITEMS) void attention_dot_rows(__global const real* out, __global const real* dout,
                                         __global float* row_dots, long batch, long head,
                                         long token, long H, long T, int D) {
  __local float parts[ITEMS];
  const int lane = get_local_id(0) % LANES, team = get_local_id(0) / LANES;
  const long t = (long)get_group_id(0) * TEAMS + team;
  const long at = (long)get_group_id(2) * batch + (long)get_group_id(1) * head + t * token;
  float sum = 0.0f;
  if (t < T)
    for (int d = lane; d < D; d += LANES)
      sum = fma(widened(out[at + d]), widened(dout[at + d]), sum);
  parts[get_local_id(0)] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lane != 0 || t >= T) return;
  for (int i = 1; i < LANES; ++i) sum += parts[team * LANES + i];
  row_dots[((long)get_group_id(2) * H + (long)get_group_id(1)) * T + t] = sum;
}

/// Checks one start: it must be t or the start of the previous token. A fault reports a token, its
/// value and an exclusive upper limit. If a start is below the start of the previous token, the
/// previous token is reported, because its start is above this limit.
element_kernel void attention_check_starts(__global const int* starts, long n, long T,
                                           fault_parameters) {
  const long i = element_index();
  if (i >= n) return;
  const long t = i % T, start = starts[i], before = t > 0 ? starts[i - 1] : 0;
  if (start < 0 || start > t)
    report(fault_arguments, i, start, t + 1);
  else if (start < before)
    report(fault_arguments, i - 1, before, start + 1);
  else if (start != before && start != t)
    report(fault_arguments, i, start, before + 1);
}

element_kernel void attention_check_key_lengths(__global const int* key_lengths, long n, long keys,
                                                fault_parameters) {
  const long i = element_index();
  if (i < n && (key_lengths[i] < 0 || key_lengths[i] > keys))
    report(fault_arguments, i, key_lengths[i], keys + 1);
}

// Heads of up to CHUNKS * 32 columns; a team has ROWS resident rows. The included file undefines
// both.
#define CHUNKS 2
#define ROWS 4
#include "zerograd/kernels/attention/attention_of_size.clh"
#define CHUNKS 4
#define ROWS 2
#include "zerograd/kernels/attention/attention_of_size.clh"
#define CHUNKS 8
#define ROWS 1
#include "zerograd/kernels/attention/attention_of_size.clh"
#define CHUNKS 32
#define ROWS 1
#include "zerograd/kernels/attention/attention_of_size.clh"
