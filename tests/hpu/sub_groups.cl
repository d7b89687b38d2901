// Functions of sub-groups, for builtins_test.cpp: row r of `out` is the r-th of them.
#define FUNCTION __attribute__((overloadable))
float FUNCTION intel_sub_group_shuffle(float x, uint lane);
float FUNCTION intel_sub_group_shuffle_xor(float x, uint mask);
float FUNCTION intel_sub_group_shuffle_down(float x, float next, uint by);
float FUNCTION intel_sub_group_shuffle_up(float before, float x, uint by);
uint FUNCTION intel_sub_group_block_read(const __global uint* p);
uint4 FUNCTION intel_sub_group_block_read4(const __global uint* p);
void FUNCTION intel_sub_group_block_write(__global uint* p, uint x);
void FUNCTION intel_sub_group_block_write4(__global uint* p, uint4 x);
ushort2 FUNCTION intel_sub_group_block_read_us2(const __global ushort* p);
void FUNCTION intel_sub_group_block_write_us2(__global ushort* p, ushort2 x);

#define SUB_GROUP __attribute__((intel_reqd_sub_group_size(ZG_SUB_GROUPS)))

__kernel SUB_GROUP void lanes(__global float* out, __global const float* x, uint lane) {
  const size_t i = get_global_id(0), n = get_global_size(0);
  const float v = x[i];
  const float values[] = {
      sub_group_reduce_add(v),
      sub_group_reduce_max(v),
      sub_group_reduce_min(v),
      sub_group_scan_inclusive_add(v),
      sub_group_scan_exclusive_add(v),
      sub_group_broadcast(v, lane),
      intel_sub_group_shuffle(v, (get_sub_group_local_id() + 3) % ZG_SUB_GROUPS),
      intel_sub_group_shuffle_xor(v, 5),
      intel_sub_group_shuffle_down(v, v + 100, 2),
      intel_sub_group_shuffle_up(v + 100, v, 3),
      (float)sub_group_any(v > 8),
      (float)sub_group_all(v > 8),
      (float)(get_sub_group_id() * 100 + get_sub_group_local_id()),
      (float)(get_num_sub_groups() * 100 + get_sub_group_size())};
  for (size_t r = 0; r < sizeof values / sizeof values[0]; ++r) out[r * n + i] = values[r];
}

// Copies of blocks: `four` and `pairs` hold as many as the sub-group reads of them.
__kernel SUB_GROUP void blocks(__global uint* out, __global const uint* x, __global uint* out4,
                               __global const uint* x4, __global ushort* out2,
                               __global const ushort* x2) {
  const size_t first = get_global_id(0) - get_sub_group_local_id();
  intel_sub_group_block_write(out + first, intel_sub_group_block_read(x + first) + 1);
  intel_sub_group_block_write4(out4 + 4 * first, intel_sub_group_block_read4(x4 + 4 * first).wzyx);
  intel_sub_group_block_write_us2(out2 + 2 * first, intel_sub_group_block_read_us2(x2 + 2 * first));
}

// Sub-groups that take different branches; all lanes of one take the same.
__kernel SUB_GROUP void ways(__global float* out, __global const float* x) {
  const size_t i = get_global_id(0);
  float sum = 0;
  for (uint k = 0; k <= get_sub_group_id(); ++k) sum += sub_group_reduce_add(x[i] + k);
  out[i] = sum;
}
