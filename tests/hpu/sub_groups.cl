// Functions of sub-groups, for sub_groups_test.cpp: row r of `out` is the r-th of them.
#define FUNCTION __attribute__((overloadable))
float8 FUNCTION intel_sub_group_shuffle(float8 x, uint lane);
int8 FUNCTION intel_sub_group_shuffle(int8 x, uint lane);
float8 FUNCTION intel_sub_group_shuffle_xor(float8 x, uint mask);

ushort8 FUNCTION intel_sub_group_block_read_us8(__local const ushort* from);
uint8 FUNCTION intel_sub_group_block_read8(__local const uint* from);

#define SUB_GROUP __attribute__((intel_reqd_sub_group_size(ZG_SUB_GROUPS)))

__kernel SUB_GROUP void lanes(__global float* out, __global const float* x) {
  const size_t i = get_global_id(0), n = get_global_size(0);
  const uint other = (get_sub_group_local_id() + 3) % ZG_SUB_GROUPS;
  const float v = x[i];
  const float8 vs = (float8)(v, 0, 0, 0, 0, 0, 0, v + 1);
  const float values[] = {sub_group_reduce_add(v),
                          intel_sub_group_shuffle(vs, other).s0,
                          as_float(intel_sub_group_shuffle(as_int8(vs), other).s7),
                          intel_sub_group_shuffle_xor(vs, 5).s7,
                          (float)(get_sub_group_id() * 100 + get_sub_group_local_id()),
                          (float)(get_num_sub_groups() * 100 + get_sub_group_size())};
  for (size_t r = 0; r < sizeof values / sizeof values[0]; ++r) out[r * n + i] = values[r];
}

// Sub-groups that take different branches; all lanes of one take the same.
__kernel SUB_GROUP void ways(__global float* out, __global const float* x) {
  const size_t i = get_global_id(0);
  float sum = 0;
  for (uint k = 0; k <= get_sub_group_id(); ++k) sum += sub_group_reduce_add(x[i] + k);
  out[i] = sum;
}

// Each lane's blocks of words and of halves of words that begin 4 `at` words further on.
__kernel SUB_GROUP __attribute__((reqd_work_group_size(ZG_SUB_GROUPS, 1, 1))) void blocks(
    __global uint* out, int at) {
  __local uint words[16 + 8 * ZG_SUB_GROUPS] __attribute__((aligned(16)));
  const uint lane = get_sub_group_local_id();
  for (uint i = lane; i < 16 + 8 * ZG_SUB_GROUPS; i += ZG_SUB_GROUPS) words[i] = i * 0x10001;
  barrier(CLK_LOCAL_MEM_FENCE);
  const uint8 of_words = intel_sub_group_block_read8(words + 4 * at);
  const ushort8 of_halves = intel_sub_group_block_read_us8((__local ushort*)(words + 4 * at));
  for (uint i = 0; i < 8; ++i) {
    out[i * ZG_SUB_GROUPS + lane] = of_words[i];
    out[(8 + i) * ZG_SUB_GROUPS + lane] = of_halves[i];
  }
}
