#pragma once

#include <type_traits>

#include "zerograd/kernels/cuda/tile.cuh"

// The tensor cores of sm_80 and later: products (mma.sync), loads of their operands from shared
// memory (ldmatrix) and asynchronous copies to shared memory (cp.async). Each function of the first
// part is one PTX instruction; tests/fakes/cuda/tensor_core.cpp emulates each of them on the CPU.
// The second part, from "matrices in shared memory" on, has the layout of operands in shared
// memory.
//
// A warp holds a matrix as fragments, some elements in the registers of each lane (PTX ISA, "Matrix
// fragments for mma.m16n8k16"). With g = lane / 4 and t = lane % 4, element e of a 16 x 8
// accumulator is at row g + 8 (e / 2) and column 2 t + e % 2.
namespace zg::cuda {

/// d += a b with a [16, 16] and b [16, 8] of T, bf16 or f16, and d [16, 8] in f32. All lanes of a
/// warp call it with their fragments.
template <class T>
__device__ inline void multiply_fragments(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, bf16>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  emulator::multiply_fragments(d, a, b0, b1, std::is_same_v<T, bf16>);
#endif
}

/// An address in shared memory, in bytes. The instructions take 32 bits, half the registers of a
/// pointer.
#ifdef __CUDACC__
using SharedAddress = uint32_t;
#else
using SharedAddress = std::byte*;
#endif

/// Address of the block's dynamic shared memory.
__device__ inline SharedAddress dynamic_address() {
#ifdef __CUDACC__
  return static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_shared<unsigned char>()));
#else
  return dynamic_shared<std::byte>();
#endif
}

/// ldmatrix.x4: loads four 8 x 8 matrices of two-byte elements. Lane l gives in `row` the address
/// of row l % 8 of matrix l / 8, a multiple of 16 bytes. to[m] gets elements 2 t and 2 t + 1 of row
/// g of matrix m; if `transposed`, of column g.
template <bool transposed>
__device__ inline void load_matrices(uint32_t (&to)[4], SharedAddress row) {
#ifdef __CUDACC__
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row)
                 : "memory");
#else
  emulator::load_matrices(to, row, transposed);
#endif
}

/// Starts to write 16 bytes to shared memory: `bytes` bytes from global memory, then zeros. Both
/// addresses are multiples of 16 bytes. This thread sees the bytes after wait_for_copies(); other
/// threads see them after a barrier that follows it.
__device__ inline void copy_async(SharedAddress to, const void* from, int bytes) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
#else
  emulator::copy_async(to, from, bytes);
#endif
}
/// Writes 16 bytes from registers to shared memory, without waiting for a group.
__device__ inline void store_shared(SharedAddress to, const Vec<uint32_t, 4>& x) {
#ifdef __CUDACC__
  asm volatile("st.shared.v4.b32 [%0],{%1,%2,%3,%4};" ::"r"(to), "r"(x.v[0]), "r"(x.v[1]),
               "r"(x.v[2]), "r"(x.v[3])
               : "memory");
#else
  *reinterpret_cast<Vec<uint32_t, 4>*>(to) = x;
#endif
}
/// Ends the current group of this thread's copies; later copies belong to the next group.
__device__ inline void commit_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::commit_copies();
#endif
}
/// Waits until all groups of this thread's copies are done, except the newest `newer`.
template <int newer>
__device__ inline void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(newer) : "memory");
#else
  emulator::finish_copies(newer);
#endif
}

/// Rounds two values to T and returns them in one register, `low` in the lower half.
template <class T>
__device__ inline uint32_t pack(float low, float high) {
#ifdef __CUDACC__
  uint32_t both;
  if constexpr (std::is_same_v<T, bf16>)
    asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(both) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return uint32_t{from_float<T>(low).bits} | uint32_t{from_float<T>(high).bits} << 16;
#endif
}

/// 2^x with an error of at most 2 ulp; subnormal results are 0.
__device__ inline float exp2_fast(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
#else
  return emulator::evaluate(emulator::Function::power_of_two, x);
#endif
}

// --- matrices in shared memory ---
//
// [rows, width] two-byte elements, without gaps. A vector is 8 elements, 16 bytes: the unit that
// copy_async() writes and ldmatrix reads. Vector v of row r is stored at position v ^ (r % 8) (a
// swizzle): ldmatrix reads the same vector of 8 rows at a time, which then lie in different banks.

/// Elements of a vector.
inline constexpr int vector_elements = 8;

template <int width>
inline constexpr int bytes_of_rows(int rows) {
  return rows * width * 2;
}

/// Address of vector `column` of a row.
template <int width>
__device__ inline SharedAddress vector_address(SharedAddress matrix, int row, int column) {
  static_assert(width % 64 == 0);
  return matrix + (bytes_of_rows<width>(row) + (column ^ (row & 7)) * 16);
}

/// Loads a [16, 16] of multiply_fragments() from rows row.. and columns 16 k.. of the matrix.
template <int width>
__device__ inline void load_a(uint32_t (&a)[4], SharedAddress matrix, int row, int k) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  load_matrices<false>(a, vector_address<width>(matrix, row + lane % 16, 2 * k + lane / 16));
}
/// Loads a [16, 16] from a matrix that holds a transposed: rows 16 k.. and columns column.. of it.
template <int width>
__device__ inline void load_a_by_columns(uint32_t (&a)[4], SharedAddress matrix, int column,
                                         int k) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  load_matrices<true>(a, vector_address<width>(matrix, 16 * k + lane % 8 + lane / 16 * 8,
                                               column / vector_elements + lane / 8 % 2));
}
/// Loads b [16, 8] of two products from a matrix that holds b transposed: b[0], b[1] from rows
/// row.. of it, b[2], b[3] from rows row + 8.., all from columns 16 k..
template <int width>
__device__ inline void load_b_by_columns(uint32_t (&b)[4], SharedAddress matrix, int row, int k) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  load_matrices<false>(
      b, vector_address<width>(matrix, row + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
}
/// Loads b [16, 8] of two products from rows 16 k.. of the matrix: b[0], b[1] from columns 16 n..,
/// b[2], b[3] from columns 16 n + 8..
template <int width>
__device__ inline void load_b_by_rows(uint32_t (&b)[4], SharedAddress matrix, int k, int n) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  load_matrices<true>(b, vector_address<width>(matrix, 16 * k + lane % 16, 2 * n + lane / 16));
}

}  // namespace zg::cuda
