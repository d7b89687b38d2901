#pragma once

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/dtype.h"

namespace zg {

/// FLOP/s that all threads of a device reach on registers alone with the instruction its matmul
/// spends its time in: multiply-add of f32 vectors or, for bf16, of pairs of bf16 at avx512_bf16
/// and of tiles at amx_bf16. The best of many short runs, 20 to 50 ms in all: what "percent of
/// peak" is a percentage of. Throws Unsupported where matmul has no such kernel: f64, f16, the
/// portable level, other backends.
ZG_API double measure_matmul_peak(const Device& device, DType dtype);

/// The same; 0 where measure_matmul_peak() throws Unsupported.
ZG_API double matmul_peak_or_zero(const Device& device, DType dtype);

/// Bytes a second that all threads of a device read and write in memory, of arrays too large for
/// any cache: y[i] += x[i], three times its bytes. The best of several passes, a quarter of a
/// second in all; takes 256 MiB. Throws Unsupported on other devices than CPUs.
ZG_API double measure_memory_bandwidth(const Device& device);

}  // namespace zg
