#include "zerograd/kernels/attention/attention.clh"

// A team of 32 work-items has ROWS rows of its own (queries, or for dk and dv keys). The work-group
// iterates over the rows of the other kind 32 at a time, one for each lane, through one tile in
// local memory. For a product of rows a lane has a row of the tile; for a sum of rows it has
// columns, 32 apart. Each output is written by one work-group only, in a fixed order, so the bits
// are the same every time. Long rows pass through the tile in slices.
#define LANES 32
#define TEAMS 8
#define ITEMS (LANES * TEAMS)

/// Rows [first, first + count) of a head as floats, zeros beyond `limit` rows and D columns, of
/// which column 0 is the slice's.
always void bring(__local float* to, int stride, int width, int count, __global const real* head,
                  long token, long first, long limit, int D) {
  for (int i = get_local_id(0); i < count * width; i += ITEMS) {
    const int row = i / width, d = i % width;
    to[row * stride + d] =
        first + row < limit && d < D ? widened(head[(first + row) * token + d]) : 0.0f;
  }
}

/// dout . out of every query: a team each.
kernel_of(ITEMS) void attention_dot_rows(__global const real* out, __global const real* dout,
                                         __global float* row_dots, long batch, long head,
                                         long token, long H, long T, int D) {
  __local float parts[ITEMS];
  const int lane = get_local_id(0) % LANES, team = get_local_id(0) / LANES;
  const long t = (long)get_group_id(0) * TEAMS + team;
  const long at = to_head(batch, head) + t * token;
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

// Heads of up to CHUNKS * 32 columns.
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
