// A tile of C = A B, 8 rows and as many columns as the sub-group has lanes, bf16 in blocks of 16.
#define FUNCTION __attribute__((overloadable))
#if ZG_DPAS == 16
typedef short8 RowsOfA;
#else
typedef int8 RowsOfA;
#endif
float8 FUNCTION intel_sub_group_bf16_bf16_matrix_mad_k16(RowsOfA a, int8 b, float8 acc);

// a: blocks of 8 rows x 16; b: blocks of 8 x lanes pairs, a pair being two rows of B.
__kernel __attribute__((intel_reqd_sub_group_size(ZG_DPAS)))
__attribute__((reqd_work_group_size(ZG_DPAS, 1, 1))) void
product(__global float* c, __global const ushort* a, __global const uint* b, int blocks) {
  const uint lane = get_sub_group_local_id();
  float8 sum = 0.0f;
  for (int k = 0; k < blocks; ++k) {
    RowsOfA rows;
    int8 pairs;
    for (int i = 0; i < 8; ++i) {
#if ZG_DPAS == 16
      rows[i] = (short)a[k * 128 + i * 16 + lane];
#else
      rows[i] = ((const __global int*)(a + k * 128))[i * 8 + lane];
#endif
      pairs[i] = (int)b[(k * 8 + i) * ZG_DPAS + lane];
    }
    sum = intel_sub_group_bf16_bf16_matrix_mad_k16(rows, pairs, sum);
  }
  for (int i = 0; i < 8; ++i) c[i * ZG_DPAS + lane] = sum[i];
}
