#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda.h"

// Emulation of the PTX instructions in kernels/cuda/hopper.cuh: the functions there call these when
// the host's compiler compiles a kernel. hopper.cpp has mbarriers, TMA and the visibility of shared
// memory, wgmma.cpp has products and registers.
namespace zg::emulator {

/// mbarrier. A copy happens, and its bytes count, only when a thread waits at the barrier, so a
/// kernel that does not wait reads NaN; with a seed perhaps earlier, and in any order.
void init_barrier(void* barrier, unsigned arrivals);
/// TMA accepts a barrier only after the thread that initialised it has called this.
void fence_barrier_init();
void arrive(void* barrier, unsigned expected_bytes);
/// One look at the barrier, after which the other threads run if the phase has not ended.
bool try_wait(void* barrier, unsigned parity);
void wait_for_phase(void* barrier, unsigned parity);
/// For tests: the copy with this number, counted over all kernels from now on, never arrives.
void lose_copy(int64_t number);

/// cp.async.bulk.tensor.4d. The destination holds NaN until the copy arrives.
void copy_box(std::byte* to, const CUtensorMap& map, int x, int y, int z, int w, void* barrier);

/// fence.proxy.async: TMA and wgmma may now access what ordinary code wrote to shared memory.
/// Without it they report bytes that differ from those that TMA wrote.
void fence_shared_writes();
/// Whether TMA and wgmma see these bytes of dynamic shared memory as they are.
bool is_visible_to_wgmma(size_t offset, size_t bytes);

/// wgmma.fence, for the registers named before it. A product accepts registers only if they were
/// named and have not changed since, or if an earlier product with the same shape uses them.
void fence_registers(void* registers, size_t bytes);
void begin_products();

/// The operands of a wgmma, except the accumulators. If `a` is null, that operand is in shared
/// memory, at the descriptor `descriptor_a`.
struct ProductOperands {
  int columns;
  uint32_t* a;
  uint64_t descriptor_a, b;
  bool is_bf16, accumulate;
  bool k_major = false;  ///< b has K along the rows of a panel, although `a` is in registers
};
/// wgmma. The registers d and a hold NaN until the warpgroup waits, and must then still hold it;
/// shared memory is read at that time, or with a seed perhaps when the product is committed.
void multiply_warpgroup(float* d, const ProductOperands& operands);
void commit_products();
void finish_products(unsigned newer_commits);

/// setmaxnreg: gives registers back to the block, or waits until the block has enough.
void decrease_registers(unsigned count);
void increase_registers(unsigned count);

}  // namespace zg::emulator
