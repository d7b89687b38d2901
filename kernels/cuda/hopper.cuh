#pragma once

#include "zerograd/kernels/cuda/mma.cuh"

// Instructions that sm_90a adds: copies of boxes by the tensor memory accelerator, barriers in
// shared memory that count bytes, and products of a group of 128 threads that read shared memory
// themselves. Each function is one PTX instruction and has a twin in tests/fakes/cuda. Matrices lie
// in panels of 64 two-byte elements to a row, 128 bytes. The 16-byte chunks of a row are permuted
// as the hardware requires (swizzle 128B). A panel begins at a multiple of 1024 bytes.
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ZG_HOPPER 1
#else
#define ZG_HOPPER 0  // the code of another architecture: kernels for sm_90a are empty in it
#endif

namespace zg::cuda {

inline constexpr int group_threads = 128;
inline constexpr int panel_columns = 64, panel_row_bytes = 128;

#if ZG_HOPPER

// --- barriers: a phase ends when all have arrived and the expected bytes, too ---

__device__ inline void start_barrier(SharedAddress barrier, unsigned arrivals) {
#ifdef __CUDACC__
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals) : "memory");
#else
  emulator::start_barrier(barrier, arrivals);
#endif
}
/// Started barriers become visible to copies; threads need __syncthreads() besides.
__device__ inline void publish_barriers() {
#ifdef __CUDACC__
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ inline void arrive(SharedAddress barrier) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(barrier) : "memory");
#else
  emulator::arrive(barrier, 0);
#endif
}
/// Arrives, and makes the phase wait for so many bytes of copies.
__device__ inline void arrive_expecting(SharedAddress barrier, unsigned bytes) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#else
  emulator::arrive(barrier, bytes);
#endif
}
/// Until the phase of this parity, 0 for the first one, has ended.
__device__ inline void wait_for_phase(SharedAddress barrier, unsigned parity) {
#ifdef __CUDACC__
  unsigned ended = 0;
  while (!ended)
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
  emulator::wait_for_phase(barrier, parity);
#endif
}

/// Starts to copy the map's box from (x, y, z, w) on; its bytes arrive at the barrier. Elements
/// outside the tensor become 0. Called by one thread.
__device__ inline void copy_box(SharedAddress to, const CUtensorMap& map, int x, int y, int z,
                                int w, SharedAddress barrier) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0],[%1,{%3,%4,%5,%6}],[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
#else
  emulator::copy_box(to, map, x, y, z, w, barrier);
#endif
}

// --- products of a group ---

/// A matrix in shared memory as a product reads it. Of a panel's rows (columns of b) 16 columns
/// from `start` on are multiplied; where `across`, of 16 of its rows all columns, 64 from each
/// panel.
__device__ inline uint64_t describe(SharedAddress start, unsigned panel_bytes = 16) {
  constexpr uint64_t eight_rows = 8 * panel_row_bytes, swizzle_128 = uint64_t{1} << 62;
#ifdef __CUDACC__
  const uint64_t address = start;
#else
  const uint64_t address = static_cast<uint64_t>(start - dynamic_address());
#endif
  return (address & 0x3ffff) >> 4 | uint64_t{panel_bytes >> 4} << 16 | eight_rows >> 4 << 32 |
         swizzle_128;
}

/// Registers that products read or write may be touched before, and after wait_for_products().
__device__ inline void open_products() {
#ifdef __CUDACC__
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ inline void commit_products() {
#ifdef __CUDACC__
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  emulator::commit_products();
#endif
}
/// Until all of the group's committed products but the newest `newer` commits are done.
template <int newer>
__device__ inline void wait_for_products() {
#ifdef __CUDACC__
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(newer) : "memory");
#else
  emulator::finish_products(newer);
#endif
}
/// The compiler does not know that a wait is what makes registers good.
template <int rows>
__device__ inline void settle(float (&d)[rows][4]) {
#ifdef __CUDACC__
#pragma unroll
  for (int n = 0; n < rows; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(d[n][e])::"memory");
#else
  static_cast<void>(d);
#endif
}

#ifdef __CUDACC__
#define ZG_FOUR(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define ZG_32(d, n)                                                                          \
  ZG_FOUR(d, n), ZG_FOUR(d, n + 1), ZG_FOUR(d, n + 2), ZG_FOUR(d, n + 3), ZG_FOUR(d, n + 4), \
      ZG_FOUR(d, n + 5), ZG_FOUR(d, n + 6), ZG_FOUR(d, n + 7)
#define ZG_LIST_32                                                                  \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21," \
  "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define ZG_LIST_64                                                                   \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,"  \
  "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41," \
  "%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61," \
  "%62,%63}"
#endif

/// d += a b: a is 64 x 16, b 16 x 128, both described by rows. All threads of the group; d as of
/// multiply_fragments(), for 16 rows a warp. Done after wait_for_products().
template <class T>
__device__ inline void multiply_group(float (&d)[16][4], uint64_t a, uint64_t b) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " ZG_LIST_64
                 ",%64,%65,1,1,1,0,0;"
                 : ZG_32(d, 0), ZG_32(d, 8)
                 : "l"(a), "l"(b));
  else
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " ZG_LIST_64
                 ",%64,%65,1,1,1,0,0;"
                 : ZG_32(d, 0), ZG_32(d, 8)
                 : "l"(a), "l"(b));
#else
  emulator::multiply_group(d[0], 128, nullptr, a, b, std::is_same_v<T, bf16>);
#endif
}

/// d += a b: a is in registers, in the fragments of multiply_fragments(), b 16 x 64 or 16 x 128
/// described across.
template <class T, int rows>
__device__ inline void multiply_group(float (&d)[rows][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(rows == 8 || rows == 16);
#ifdef __CUDACC__
  if constexpr (rows == 8) {
    if constexpr (std::is_same_v<T, bf16>)
      asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ZG_LIST_32
                   ",{%32,%33,%34,%35},%36,1,1,1,1;"
                   : ZG_32(d, 0)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
      asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " ZG_LIST_32
                   ",{%32,%33,%34,%35},%36,1,1,1,1;"
                   : ZG_32(d, 0)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    if constexpr (std::is_same_v<T, bf16>)
      asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " ZG_LIST_64
                   ",{%64,%65,%66,%67},%68,1,1,1,1;"
                   : ZG_32(d, 0), ZG_32(d, 8)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
      asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " ZG_LIST_64
                   ",{%64,%65,%66,%67},%68,1,1,1,1;"
                   : ZG_32(d, 0), ZG_32(d, 8)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
#else
  emulator::multiply_group(d[0], 8 * rows, a, 0, b, std::is_same_v<T, bf16>);
#endif
}

/// The group's threads give registers back, or take more: of 65536 for all of a block.
template <int count>
__device__ inline void give_registers() {
#ifdef __CUDACC__
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#endif
}
template <int count>
__device__ inline void take_registers() {
#ifdef __CUDACC__
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#endif
}

#endif

}  // namespace zg::cuda
