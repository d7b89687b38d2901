#pragma once

#include "zerograd/kernels/cuda/launch.h"
#include "zerograd/runtime/dtype.h"

// Used by most CUDA kernels: conversion of elements, vectors of 16 bytes, sums over a warp or a
// block, faults, and dispatch on a dtype.
namespace zg::cuda {

inline constexpr int lanes = 32;
inline constexpr unsigned all_lanes = 0xffffffffu;

// --- elements: stored in their dtype, computed with in f32 ---

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
__device__ inline float to_float(f16 x) {
#ifdef __CUDACC__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  return static_cast<float>(x);
#endif
}

template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
/// Rounds to nearest even. Every NaN becomes 0x7fff, as by the instruction; a CPU keeps its sign.
template <>
__device__ inline bf16 from_float<bf16>(float x) {
  bf16 y;
#ifdef __CUDACC__
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  y = bf16(x);
  if (x != x) y.bits = 0x7fff;
#endif
  return y;
}
template <>
__device__ inline f16 from_float<f16>(float x) {
  f16 y;
#ifdef __CUDACC__
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  y = f16(x);
  if (x != x) y.bits = 0x7fff;
#endif
  return y;
}

/// Converts to the type that a dtype is computed in: integers stay as they are, floating types
/// become f32.
template <class T>
__device__ inline auto widened(T x) {
  if constexpr (std::is_integral_v<T>)
    return x;
  else
    return to_float(x);
}

// --- vectors ---

/// N elements, aligned for loads and stores of up to 16 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
  T v[N];
};

/// The number of elements of T in 16 bytes.
template <class T>
inline constexpr int vector_width = 16 / static_cast<int>(sizeof(T));

/// The address of a Vec<T, N>. An address that is not aligned for it is an error of the device.
template <class V, class T>
__device__ inline V* vector_at(T* start) {
#ifndef __CUDACC__
  if (reinterpret_cast<uintptr_t>(start) % alignof(V) != 0)
    emulator::die("a vector at an address that is not a multiple of " + std::to_string(alignof(V)) +
                  " bytes");
#endif
  return reinterpret_cast<V*>(start);
}

/// Loads N elements: one instruction for each 16 bytes.
template <int N, class T>
__device__ inline Vec<T, N> load(const T* from) {
  constexpr int width = N < vector_width<T> ? N : vector_width<T>;
  static_assert(N % width == 0);
  Vec<T, N> values;
#pragma unroll
  for (int begin = 0; begin < N; begin += width) {
    const auto part = *vector_at<const Vec<T, width>>(from + begin);
#pragma unroll
    for (int k = 0; k < width; ++k) values.v[begin + k] = part.v[k];
  }
  return values;
}
template <int N, class T>
__device__ inline void store(T* to, const Vec<T, N>& values) {
  constexpr int width = N < vector_width<T> ? N : vector_width<T>;
#pragma unroll
  for (int begin = 0; begin < N; begin += width) {
    Vec<T, width> part;
#pragma unroll
    for (int k = 0; k < width; ++k) part.v[k] = values.v[begin + k];
    *vector_at<Vec<T, width>>(to + begin) = part;
  }
}

/// Whether elements from this address on can be loaded and stored as a Vec<T, N>; a null address
/// is never loaded.
template <int N, class T>
bool starts_vector(const T* start) {
  return reinterpret_cast<uintptr_t>(start) % alignof(Vec<T, N>) == 0;
}

/// Whether rows of C elements from this address on can be read as vectors of 16 bytes.
template <class T>
bool takes_vectors(const T* start, int64_t C) {
  return C % vector_width<T> == 0 && reinterpret_cast<uintptr_t>(start) % 16 == 0;
}

/// The dynamic shared memory of the block: Grid::shared bytes.
template <class T>
__device__ inline T* dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ __align__(1024) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
#else
  return reinterpret_cast<T*>(emulator::current->block->shared);
#endif
}

/// The piece that a block of a launch handles. Several arrays are cut into the blocks of one
/// launch; pieces[i].first_block, in rising order from 0, is the first block of array i.
template <class Piece>
__device__ inline int piece_of_block(const Piece* pieces, int count) {
  int piece = 0;
  for (int end = count; end - piece > 1;) {
    const int middle = (piece + end) / 2;
    if (pieces[middle].first_block <= blockIdx.x)
      piece = middle;
    else
      end = middle;
  }
  return piece;
}

// --- sums and maxima, in an order that depends on nothing but the number of threads ---

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    x += __shfl_xor_sync(all_lanes, x, distance);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(all_lanes, x, distance);
    x = other > x || other != other ? other : x;  // a NaN stays
  }
  return x;
}

/// The sum over a block of `warps` warps, returned to every thread. All threads of the block call
/// it; with one warp, `block` means that warp, with none a thread. It may be called again at once.
template <int warps>
__device__ inline float block_sum(float x) {
  if constexpr (warps > 0) x = warp_sum(x);
  if constexpr (warps > 1) {
    __shared__ float partial[warps];
    __syncthreads();  // all threads have read the result of an earlier call
    if (threadIdx.x % lanes == 0) partial[threadIdx.x / lanes] = x;
    __syncthreads();
    x = 0.0f;
#pragma unroll
    for (int warp = 0; warp < warps; ++warp) x += partial[warp];
  }
  return x;
}
template <int warps>
__device__ inline float block_max(float x) {
  if constexpr (warps > 0) x = warp_max(x);
  if constexpr (warps > 1) {
    __shared__ float partial[warps];
    __syncthreads();
    if (threadIdx.x % lanes == 0) partial[threadIdx.x / lanes] = x;
    __syncthreads();
    x = partial[0];
#pragma unroll
    for (int warp = 1; warp < warps; ++warp)
      x = partial[warp] > x || partial[warp] != partial[warp] ? partial[warp] : x;
  }
  return x;
}

// --- faults: errors that a kernel finds and cannot throw ---

/// Records a fault: element `place` of the argument that `site` names has `value`, which is not
/// below `limit`. The stream keeps the first one, and its next synchronize() throws it.
__device__ inline void report(Fault* fault, FaultSite site, int64_t place, int64_t value,
                              int64_t limit) {
  if (atomicCAS(&fault->found, 0u, 1u) != 0u) return;
  fault->site = site;
  fault->place = place;
  fault->value = value;
  fault->limit = limit;
}

/// Calls f with a zero of the C++ type of an index dtype, i32 or i64.
template <class F>
void visit_index(DType dtype, const F& f) {
  if (dtype == DType::i32) return f(int32_t());
  f(int64_t());
}

/// Calls f with a zero of the C++ type of a floating dtype. f64 is not among them: only the CPU has
/// kernels for it.
template <class F>
void visit_floating(DType dtype, const F& f) {
  switch (dtype) {
    case DType::bf16:
      return f(bf16());
    case DType::f16:
      return f(f16());
    default:
      return f(float());
  }
}

}  // namespace zg::cuda
