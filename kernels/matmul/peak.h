#pragma once

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/tensor.h"

namespace zg {

/// Measures the FLOP/s of all threads of a CPU for matmul's main instruction, without memory
/// access. The instruction is a multiply-add: for f32 of vectors, for bf16 of vectors of pairs
/// (avx512_bf16) or of tiles (amx_bf16). "Percent of peak" refers to this number. It is the best of
/// many short runs, which take 20 to 50 ms together. Throws Unsupported where matmul has no kernel
/// with these instructions: for f64 and f16, for the portable instruction set, on accelerators.
ZG_API double measure_matmul_peak(const Device& device, DType dtype);

/// Returns measure_matmul_peak(), or 0 where that throws Unsupported.
ZG_API double matmul_peak_or_zero(const Device& device, DType dtype);

/// Bytes per second that all threads of a CPU read and write: x is read, in four runs of addresses;
/// y += 1, which moves each element of y two times; y += x, which moves it three times.
struct MemoryRates {
  double read = 0.0, update = 0.0, add = 0.0;
};
/// Measures these loops in the memory of the array, f32 on a CPU, of 192 elements or more: the best
/// of several passes, which take some milliseconds each if no cache holds the array. Its values are
/// overwritten. Throws Unsupported on accelerators.
ZG_API MemoryRates measure_memory_rates(const Tensor& array);

/// The rate of y += x in 256 MiB, which few caches hold. Throws Unsupported on accelerators.
ZG_API double measure_memory_bandwidth(const Device& device);

}  // namespace zg
