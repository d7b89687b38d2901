#pragma once

// The CUDA language as kernels use it, for a plain C++ compiler; tests/fakes/cuda/block.h runs
// it. It stands where the CUDA Toolkit's header of this name would.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cuda_runtime_api.h"
#include "tests/fakes/cuda/block.h"
#include "tests/fakes/cuda/hopper.h"
#include "tests/fakes/cuda/launch.h"
#include "tests/fakes/cuda/precision.h"
#include "tests/fakes/cuda/tensor_core.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
// AddressSanitizer puts red zones round plain statics only.
#ifdef __SANITIZE_ADDRESS__
#define __shared__ static
#else
#define __shared__ static thread_local
#endif

#define threadIdx (::zg::emulator::current->index)
#define blockIdx (::zg::emulator::current->block->index)
#define blockDim (::zg::emulator::current->block->threads_extent)
#define gridDim (::zg::emulator::current->block->grid)
#define warpSize 32

namespace zg::emulator {

/// One operand of a lane in an operation that hands values between lanes.
template <class T>
struct Exchange {
  T value, result;
  unsigned from;
};

template <class T>
T exchange(uint32_t mask, const char* what, T value, unsigned from) {
  Exchange<T> mine{value, value, from % warp_lanes};
  warp_rendezvous(mask, what, &mine, [](void* const* published, uint32_t lanes) {
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      auto* to = static_cast<Exchange<T>*>(published[std::countr_zero(rest)]);
      if (!(lanes >> to->from & 1u)) die("a lane reads a lane that its mask leaves out");
      to->result = static_cast<Exchange<T>*>(published[to->from])->value;
    }
  });
  return mine.result;
}

inline uint32_t vote(uint32_t mask, const char* what, bool mine) {
  Exchange<uint32_t> own{mine ? 1u : 0u, 0, 0};
  warp_rendezvous(mask, what, &own, [](void* const* published, uint32_t lanes) {
    uint32_t votes = 0;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      votes |= static_cast<Exchange<uint32_t>*>(published[lane])->value << lane;
    }
    for (uint32_t rest = lanes; rest; rest &= rest - 1)
      static_cast<Exchange<uint32_t>*>(published[std::countr_zero(rest)])->result = votes;
  });
  return own.result;
}

}  // namespace zg::emulator

inline void __syncthreads() { zg::emulator::block_barrier(); }
inline void __syncwarp(unsigned mask = ~0u) {
  zg::emulator::warp_rendezvous(mask, "__syncwarp", nullptr, nullptr);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
[[noreturn]] inline void __trap() { zg::emulator::trap(); }

template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  return zg::emulator::exchange(mask, "__shfl_sync", value, static_cast<unsigned>(from));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return zg::emulator::exchange(mask, "__shfl_xor_sync", value,
                                zg::emulator::current->lane ^ static_cast<unsigned>(distance));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
  const unsigned lane = zg::emulator::current->lane;
  return zg::emulator::exchange(mask, "__shfl_up_sync", value,
                                lane >= distance ? lane - distance : lane);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
  const unsigned lane = zg::emulator::current->lane;
  return zg::emulator::exchange(mask, "__shfl_down_sync", value,
                                lane + distance < 32 ? lane + distance : lane);
}
inline unsigned __ballot_sync(unsigned mask, bool mine) {
  return zg::emulator::vote(mask, "__ballot_sync", mine);
}
inline bool __any_sync(unsigned mask, bool mine) {
  return zg::emulator::vote(mask, "__any_sync", mine) != 0;
}
inline bool __all_sync(unsigned mask, bool mine) {
  return zg::emulator::vote(mask, "__all_sync", mine) == mask;
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1;
}
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }

// Integers only: sums of floats by atomics would depend on the order.
template <class T>
T atomicAdd(T* place, T value) {
  static_assert(std::is_integral_v<T>, "atomicAdd: no float atomics in a kernel");
  return __atomic_fetch_add(place, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicCAS(T* place, T expected, T value) {
  __atomic_compare_exchange_n(place, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

// Rounded as named; the compiler is told to contract nothing.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdividef(float a, float b) {
  return zg::emulator::evaluate(zg::emulator::Function::quotient, a, b);
}
inline float rsqrtf(float x) {
  return zg::emulator::evaluate(zg::emulator::Function::reciprocal_root, x);
}
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }

// Functions with an error on a GPU. Kernels are in this namespace, so that their calls find these
// before the functions of the host's library.
namespace zg::cuda {

inline float expf(float x) { return emulator::evaluate(emulator::Function::exp, x); }
inline float expm1f(float x) { return emulator::evaluate(emulator::Function::expm1, x); }
inline float logf(float x) { return emulator::evaluate(emulator::Function::log, x); }
inline float tanhf(float x) { return emulator::evaluate(emulator::Function::tanh, x); }
inline float powf(float x, float y) { return emulator::evaluate(emulator::Function::pow, x, y); }
inline float erff(float x) { return emulator::evaluate(emulator::Function::erf, x); }
inline float log1pf(float x) { return emulator::evaluate(emulator::Function::log1p, x); }
inline float erfcf(float x) { return emulator::evaluate(emulator::Function::erfc, x); }

}  // namespace zg::cuda
