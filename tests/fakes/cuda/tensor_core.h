#pragma once

#include <cstdint>

// Twins of the PTX instructions of kernels/cuda/mma.cuh.
namespace zg::emulator {

/// mma.sync.m16n8k16 with sums in f32, product by product; of bf16 or else f16.
void multiply_fragments(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                        bool is_bf16);
/// ldmatrix.x4, from dynamic shared memory.
void load_matrices(uint32_t (&to)[4], const void* row, bool transposed);
/// cp.async of 16 bytes to dynamic shared memory, zeros behind the first `bytes`. The place holds
/// NaN until someone waits.
void copy_async(void* to, const void* from, int bytes);
void commit_copies();

}  // namespace zg::emulator
