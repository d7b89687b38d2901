// A tile of C = A B, 8 rows and as many columns as the sub-group has lanes, bf16 in blocks of 16.
#define FUNCTION __attribute__((overloadable))
#if ZG_DPAS == 16
typedef short8 RowsOfA;
#define AS_ROWS as_short8
#else
typedef int8 RowsOfA;
#define AS_ROWS as_int8
#endif
float8 FUNCTION intel_sub_group_bf16_bf16_matrix_mad_k16(RowsOfA a, int8 b, float8 acc);
ushort8 FUNCTION intel_sub_group_block_read_us8(const __global ushort* p);
uint8 FUNCTION intel_sub_group_block_read8(const __global uint* p);
void FUNCTION intel_sub_group_block_write8(__global uint* p, uint8 x);

// a: blocks of 8 rows x 16; b: blocks of 8 x lanes pairs, a pair being two rows of B.
__kernel __attribute__((intel_reqd_sub_group_size(ZG_DPAS)))
__attribute__((reqd_work_group_size(ZG_DPAS, 1, 1))) void
product(__global float* c, __global const ushort* a, __global const uint* b, int blocks) {
  float8 sum = 0.0f;
  for (int k = 0; k < blocks; ++k) {
#if ZG_DPAS == 16
    const RowsOfA rows = AS_ROWS(intel_sub_group_block_read_us8(a + k * 128));
#else
    const RowsOfA rows = AS_ROWS(intel_sub_group_block_read8((const __global uint*)(a + k * 128)));
#endif
    sum = intel_sub_group_bf16_bf16_matrix_mad_k16(
        rows, as_int8(intel_sub_group_block_read8(b + k * 8 * ZG_DPAS)), sum);
  }
  intel_sub_group_block_write8((__global uint*)c, as_uint8(sum));
}
