#pragma once

#include <type_traits>

#include "zerograd/kernels/cuda/tile.cuh"

// The tensor cores of sm_80 and later, and what feeds them: one PTX instruction a function, with a
// twin in tests/fakes/cuda. Fragments are as the PTX ISA has them (section "Matrix fragments for
// mma.m16n8k16"): with group g = lane / 4 and t = lane % 4, element e of an accumulator of 16 x 8
// is of row g + 8 (e / 2) and column 2 t + e % 2.
namespace zg::cuda {

/// d += a b: a is 16 x 16 by rows, b 16 x 8 by columns, of bf16 or f16. All lanes of a warp.
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

/// A place in shared memory as these instructions take it, counted in bytes: half the registers of
/// a pointer.
#ifdef __CUDACC__
using SharedAddress = uint32_t;
#else
using SharedAddress = std::byte*;
#endif

/// Where the block's dynamic shared memory begins.
__device__ inline SharedAddress dynamic_address() {
#ifdef __CUDACC__
  return static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_shared<unsigned char>()));
#else
  return dynamic_shared<std::byte>();
#endif
}

/// Four matrices of 8 x 8 two-byte elements from shared memory: lane l brings the address of row
/// l % 8 of matrix l / 8, at a multiple of 16 bytes. A lane gets elements 2 t and 2 t + 1 of row g
/// of each, or of column g where transposed.
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

/// 16 bytes to shared memory: the first `bytes` from global memory, then zeros; both places at a
/// multiple of 16 bytes. They are there after wait_for_copies() of this thread, for others after a
/// barrier too.
__device__ inline void copy_async(SharedAddress to, const void* from, int bytes) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
#else
  emulator::copy_async(to, from, bytes);
#endif
}
/// The same at once, from registers.
__device__ inline void store_shared(SharedAddress to, const Vec<uint32_t, 4>& x) {
#ifdef __CUDACC__
  asm volatile("st.shared.v4.b32 [%0],{%1,%2,%3,%4};" ::"r"(to), "r"(x.v[0]), "r"(x.v[1]),
               "r"(x.v[2]), "r"(x.v[3])
               : "memory");
#else
  *reinterpret_cast<Vec<uint32_t, 4>*>(to) = x;
#endif
}
/// Makes a group of the thread's copies since the last one.
__device__ inline void commit_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::commit_copies();
#endif
}
/// Until all of the thread's groups but the newest `newer` have arrived.
template <int newer>
__device__ inline void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(newer) : "memory");
#else
  emulator::finish_copies(newer);
#endif
}

/// Two values as T in one register, `low` in its lower half.
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

/// 2^x, good to 2 ulp; subnormals are 0.
__device__ inline float exp2_fast(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

// --- matrices of two-byte elements in shared memory, `width` to a row ---

/// Elements in 16 bytes: what is copied, loaded and moved about together.
inline constexpr int piece = 8;

template <int width>
inline constexpr int bytes_of_rows(int rows) {
  return rows * width * 2;
}

/// Piece `column` of a row. Pieces of eight rows are crossed, so that rows that are loaded together
/// lie in different banks.
template <int width>
__device__ inline SharedAddress piece_at(SharedAddress matrix, int row, int column) {
  static_assert(width % 64 == 0);
  return matrix + (bytes_of_rows<width>(row) + (column ^ (row & 7)) * 16);
}

/// The 16 x 16 elements from (row, 16 k) on, as a.
template <int width>
__device__ inline void load_a(uint32_t (&a)[4], SharedAddress matrix, int row, int k) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  load_matrices<false>(a, piece_at<width>(matrix, row + lane % 16, 2 * k + lane / 16));
}
/// The same of a matrix that has a's columns for rows: from (16 k, column) on.
template <int width>
__device__ inline void load_a_by_columns(uint32_t (&a)[4], SharedAddress matrix, int column,
                                         int k) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  load_matrices<true>(
      a, piece_at<width>(matrix, 16 * k + lane % 8 + lane / 16 * 8, column / piece + lane / 8 % 2));
}
/// b of two products, each of the matrix's 8 rows from `row` and `row` + 8 on: columns of b.
template <int width>
__device__ inline void load_b_by_columns(uint32_t (&b)[4], SharedAddress matrix, int row, int k) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  load_matrices<false>(
      b, piece_at<width>(matrix, row + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
}
/// b of two products, of the matrix's 16 rows from 16 k on and 8 columns from 16 n and 16 n + 8 on.
template <int width>
__device__ inline void load_b_by_rows(uint32_t (&b)[4], SharedAddress matrix, int k, int n) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  load_matrices<true>(b, piece_at<width>(matrix, 16 * k + lane % 16, 2 * n + lane / 16));
}

}  // namespace zg::cuda
