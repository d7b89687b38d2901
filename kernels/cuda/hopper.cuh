#pragma once

#include "zerograd/kernels/cuda/mma.cuh"

// Instructions of sm_90a: tensor copies by the tensor memory accelerator (TMA), mbarriers, and
// wgmma, the matrix product of a warpgroup (128 threads) that reads its operands from shared
// memory. Each function is one PTX instruction; tests/fakes/cuda/hopper.cpp emulates each of them
// on the CPU. PTX ISA, sections "Asynchronous Warpgroup Level Matrix Multiply-Accumulate
// Instructions", "mbarrier" and "cp.async.bulk.tensor".
//
// A matrix of two-byte elements lies in shared memory as panels. A panel has 64 columns: its rows
// are 128 bytes long and follow each other without gaps. It begins at a multiple of 1024 bytes.
// Within each row, the 16-byte unit u of row r is stored at position u ^ (r % 8) (the 128-byte
// swizzle mode), which TMA writes and wgmma reads.
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ZG_HOPPER 1
#else
#define ZG_HOPPER 0  // another architecture: the kernels for sm_90a are compiled without a body
#endif

namespace zg::cuda {

/// Whether this build has machine code for sm_90a. Without it no kernel for Hopper may start: its
/// body is empty.
#if !defined(__CUDACC__) || defined(ZG_SM90A)
inline constexpr bool has_hopper_code = true;
#else
inline constexpr bool has_hopper_code = false;
#endif

inline constexpr int warpgroup_threads = 128;
inline constexpr int panel_columns = 64, panel_row_bytes = 128;

#if ZG_HOPPER

// --- mbarriers ---
//
// An mbarrier is 8 bytes in shared memory. Its phase ends when the given number of threads have
// arrived and all expected bytes have been copied; then the next phase begins. Phases 0, 1, 2, ...
// have parity 0, 1, 0, ...

__device__ inline void init_barrier(SharedAddress barrier, unsigned arrivals) {
#ifdef __CUDACC__
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals) : "memory");
#else
  emulator::init_barrier(barrier, arrivals);
#endif
}
/// Makes init_barrier() visible to TMA. Other threads see it after __syncthreads().
__device__ inline void fence_barrier_init() {
#ifdef __CUDACC__
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
  emulator::fence_barrier_init();
#endif
}
__device__ inline void arrive(SharedAddress barrier) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(barrier) : "memory");
#else
  emulator::arrive(barrier, 0);
#endif
}
/// Arrives; the current phase then also waits until TMA has copied `bytes` bytes.
__device__ inline void arrive_expecting(SharedAddress barrier, unsigned bytes) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#else
  emulator::arrive(barrier, bytes);
#endif
}
/// Returns whether the phase with this parity has ended. If it has not, the thread first sleeps for
/// up to 10 ms. On a new barrier the phase with parity 1 counts as ended.
__device__ inline bool try_wait(SharedAddress barrier, unsigned parity) {
#ifdef __CUDACC__
  constexpr unsigned longest_sleep_ns = 10'000'000;
  unsigned ended;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2,%3; selp.u32 %0,1,0,p;}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity), "r"(longest_sleep_ns)
      : "memory");
  return ended;
#else
  return emulator::try_wait(barrier, parity);
#endif
}
/// Waits until the phase with this parity has ended.
__device__ inline void wait_for_phase(SharedAddress barrier, unsigned parity) {
#ifdef __CUDACC__
  while (!try_wait(barrier, parity)) {
  }
#else
  emulator::wait_for_phase(barrier, parity);
#endif
}
/// Also waits, but if the phase does not end, it calls report_loss() and ends the kernel with an
/// error: on a GPU after about `most_tries` * 10 ms, much longer than a copy can take. The device
/// then refuses all further work, but the host can report the reason. It is enough that one thread
/// of a block waits with this limit. Threads that hold accumulators wait without it, because the
/// count needs registers.
template <class F>
__device__ inline void wait_for_phase(SharedAddress barrier, unsigned parity,
                                      const F& report_loss) {
#ifdef __CUDACC__
  constexpr int most_tries = 1000;
#else
  constexpr int most_tries = 200'000;  // each lets one other thread run; a tile may have many steps
#endif
#pragma unroll 1
  for (int tries = 0; !try_wait(barrier, parity); ++tries)
    if (tries == most_tries) {
      report_loss();
      __threadfence_system();
      __trap();
    }
}

/// Starts to copy a box of the tensor, whose first element has the indices (x, y, z, w), x being
/// the innermost. The tensor map holds the extents of tensor and box. Elements outside the tensor
/// are written as 0. `barrier` counts the copied bytes. One thread calls this.
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

// --- products of a warpgroup ---

/// The 64-bit matrix descriptor by which wgmma finds an operand in shared memory (PTX ISA, "Matrix
/// descriptor"): start address, leading dimension byte offset, stride byte offset (8 rows of a
/// panel) and swizzle mode, addresses and offsets in units of 16 bytes. There are two uses:
///   - K along the rows of a panel, for a and for b transposed: `start` is in the first row, at the
///     first of 16 columns. The leading dimension offset is not used.
///   - K down the rows, for b as it is: `start` is the first of 16 rows. All columns are read, 64
///     from each panel; panels are `panel_bytes` apart.
__device__ inline uint64_t matrix_descriptor(SharedAddress start, unsigned panel_bytes = 16) {
  constexpr uint64_t eight_rows = 8 * panel_row_bytes, swizzle_128 = uint64_t{1} << 62;
#ifdef __CUDACC__
  const uint64_t address = start;
#else
  const uint64_t address = static_cast<uint64_t>(start - dynamic_address());
#endif
  return (address & 0x3ffff) >> 4 | uint64_t{panel_bytes >> 4} << 16 | eight_rows >> 4 << 32 |
         swizzle_128;
}

/// Keeps the compiler from moving accesses to registers across this place: it does not know that
/// wgmma reads and writes them asynchronously. `registers` are accumulators (f32) or fragments of a
/// (uint32_t). No instruction.
template <class T, int rows>
__device__ inline void fence_registers(T (&registers)[rows][4]) {
#ifdef __CUDACC__
#pragma unroll
  for (int n = 0; n < rows; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if constexpr (std::is_same_v<T, float>)
        asm volatile("" : "+f"(registers[n][e])::"memory");
      else
        asm volatile("" : "+r"(registers[n][e])::"memory");
#else
  emulator::fence_registers(registers, sizeof registers);
#endif
}
/// Orders earlier accesses to the given registers before the products that follow and use them:
/// accumulators, and fragments of a. From here to wait_for_products() the thread must not touch
/// them.
template <class... Registers>
__device__ inline void begin_products(Registers&... registers) {
  (fence_registers(registers), ...);
#ifdef __CUDACC__
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  emulator::begin_products();
#endif
}
/// Makes this thread's earlier writes to shared memory visible to wgmma and TMA; other threads' too
/// if a barrier ordered them before. Bytes that TMA wrote need no fence.
__device__ inline void fence_shared_writes() {
#ifdef __CUDACC__
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  emulator::fence_shared_writes();
#endif
}
__device__ inline void commit_products() {
#ifdef __CUDACC__
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  emulator::commit_products();
#endif
}
/// Waits until all committed products are done, except those of the newest `newer` commits.
template <int newer>
__device__ inline void wait_for_products() {
#ifdef __CUDACC__
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(newer) : "memory");
#else
  emulator::finish_products(newer);
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

/// d += a b, or d = a b unless `accumulate`, where a is [64, 16] and b is [16, 64] or [16, 128],
/// both in shared memory with K along the rows of a panel. All 128 threads call it. Warp w holds
/// rows 16 w to 16 w + 15 of d, laid out as in multiply_fragments(). d is valid after
/// wait_for_products().
template <class T, int rows>
__device__ inline void multiply_warpgroup(float (&d)[rows][4], uint64_t a, uint64_t b,
                                          bool accumulate) {
  static_assert(rows == 8 || rows == 16);
#ifdef __CUDACC__
  const int scale_d = accumulate;
  if constexpr (rows == 8 && std::is_same_v<T, bf16>)
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p,%34,0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ZG_LIST_32 ",%32,%33,p,1,1,0,0;}"
        : ZG_32(d, 0)
        : "l"(a), "l"(b), "r"(scale_d));
  else if constexpr (rows == 8)
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p,%34,0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " ZG_LIST_32 ",%32,%33,p,1,1,0,0;}"
        : ZG_32(d, 0)
        : "l"(a), "l"(b), "r"(scale_d));
  else if constexpr (std::is_same_v<T, bf16>)
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p,%66,0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " ZG_LIST_64 ",%64,%65,p,1,1,0,0;}"
        : ZG_32(d, 0), ZG_32(d, 8)
        : "l"(a), "l"(b), "r"(scale_d));
  else
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p,%66,0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " ZG_LIST_64 ",%64,%65,p,1,1,0,0;}"
        : ZG_32(d, 0), ZG_32(d, 8)
        : "l"(a), "l"(b), "r"(scale_d));
#else
  emulator::multiply_warpgroup(d[0],
                               {8 * rows, nullptr, a, b, std::is_same_v<T, bf16>, accumulate});
#endif
}

/// d = a b or d += a b, where a is [64, 16] in registers, laid out as in multiply_fragments(), and
/// b is [16, 64] in shared memory with K along the rows of a panel. The thread must not write `a`
/// before wait_for_products().
template <class T>
__device__ inline void multiply_warpgroup(float (&d)[8][4], uint32_t (&a)[4], uint64_t b,
                                          bool accumulate) {
#ifdef __CUDACC__
  const int scale_d = accumulate;
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p,%37,0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " ZG_LIST_32
        ",{%32,%33,%34,%35},%36,p,1,1,0;}"
        : ZG_32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale_d));
  else
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p,%37,0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " ZG_LIST_32
        ",{%32,%33,%34,%35},%36,p,1,1,0;}"
        : ZG_32(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale_d));
#else
  emulator::multiply_warpgroup(d[0], {64, a, 0, b, std::is_same_v<T, bf16>, accumulate, true});
#endif
}

/// d += a b, where a is [64, 16] in registers, laid out as in multiply_fragments(), and b is [16,
/// 64] or [16, 128] in shared memory with K down the rows. The thread must not touch `a` before
/// wait_for_products().
template <class T, int rows>
__device__ inline void multiply_warpgroup(float (&d)[rows][4], uint32_t (&a)[4], uint64_t b) {
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
  emulator::multiply_warpgroup(d[0], {8 * rows, a, 0, b, std::is_same_v<T, bf16>, true});
#endif
}

/// Sets the registers per thread of the calling warpgroup to `count`. The warpgroups of a block
/// share what the launch gave it, so one must decrease before another can increase.
template <int count>
__device__ inline void decrease_registers() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256);
#ifdef __CUDACC__
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#else
  emulator::decrease_registers(count);
#endif
}
template <int count>
__device__ inline void increase_registers() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256);
#ifdef __CUDACC__
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#else
  emulator::increase_registers(count);
#endif
}

#endif

}  // namespace zg::cuda
