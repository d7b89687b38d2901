#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda.h"

// Twins of the PTX instructions of kernels/cuda/hopper.cuh.
namespace zg::emulator {

/// mbarrier: arrivals and expected bytes of the phase; a copy's bytes arrive when somebody waits.
void start_barrier(void* barrier, unsigned arrivals);
void arrive(void* barrier, unsigned expected_bytes);
void wait_for_phase(void* barrier, unsigned parity);

/// cp.async.bulk.tensor.4d: the place holds NaN until somebody waits at the barrier.
void copy_box(std::byte* to, const CUtensorMap& map, int x, int y, int z, int w, void* barrier);

/// wgmma: d holds NaN until the group waits; then shared memory is read. `a` null: described.
void multiply_group(float* d, int columns, const uint32_t* a, uint64_t described_a, uint64_t b,
                    bool is_bf16);
void commit_products();
void finish_products(unsigned newer_commits);

}  // namespace zg::emulator
