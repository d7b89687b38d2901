#pragma once

#include <cstdint>

// Emulation of the PTX instructions in kernels/cuda/mma.cuh: the functions there call these when
// the host's compiler compiles a kernel.
namespace zg::emulator {

/// mma.sync.m16n8k16 of bf16 or f16 with f32 sums, one product after the other.
void multiply_fragments(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                        bool is_bf16);
/// ldmatrix.x4, from dynamic shared memory.
void load_matrices(uint32_t (&to)[4], const void* row, bool transposed);
/// cp.async of 16 bytes to dynamic shared memory: `bytes` bytes, then zeros. The destination holds
/// NaN until the thread waits for the copy.
void copy_async(void* to, const void* from, int bytes);
void commit_copies();

}  // namespace zg::emulator
