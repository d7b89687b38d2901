#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda.h"

// Emulation of the PTX instructions in kernels/cuda/hopper.cuh: the functions there call these when
// the host's compiler compiles a kernel.
namespace zg::emulator {

/// mbarrier. A copy happens, and its bytes count, only when a thread waits at the barrier; so a
/// kernel that does not wait reads NaN.
void init_barrier(void* barrier, unsigned arrivals);
void arrive(void* barrier, unsigned expected_bytes);
void wait_for_phase(void* barrier, unsigned parity);

/// cp.async.bulk.tensor.4d. The destination holds NaN until a thread waits at the barrier.
void copy_box(std::byte* to, const CUtensorMap& map, int x, int y, int z, int w, void* barrier);

/// wgmma. d holds NaN until the warpgroup waits; shared memory is read at that time. If `a` is
/// null, the operand is in shared memory, at the descriptor `descriptor_a`.
void multiply_warpgroup(float* d, int columns, const uint32_t* a, uint64_t descriptor_a, uint64_t b,
                        bool is_bf16);
void commit_products();
void finish_products(unsigned newer_commits);

}  // namespace zg::emulator
