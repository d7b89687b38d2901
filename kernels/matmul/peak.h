#pragma once

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/dtype.h"

namespace zg {

/// Measures the FLOP/s of all threads of a CPU for matmul's main instruction, without memory
/// access. The instruction is a multiply-add: for f32 of vectors, for bf16 of vectors of pairs
/// (avx512_bf16) or of tiles (amx_bf16). "Percent of peak" refers to this number. It is the best of
/// many short runs, which take 20 to 50 ms together. Throws Unsupported where matmul has no kernel
/// with these instructions: for f64 and f16, for the portable instruction set, on accelerators.
ZG_API double measure_matmul_peak(const Device& device, DType dtype);

/// Returns measure_matmul_peak(), or 0 where that throws Unsupported.
ZG_API double matmul_peak_or_zero(const Device& device, DType dtype);

/// Measures the bytes per second that all threads of a CPU read and write in memory. The loop is
/// y[i] += x[i] on arrays too large for any cache; each element counts three times: read x, read y,
/// write y. It is the best of several passes, which take a quarter of a second together and 256
/// MiB. Throws Unsupported on accelerators.
ZG_API double measure_memory_bandwidth(const Device& device);

}  // namespace zg
