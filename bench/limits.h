#pragma once

#include "runtime/device.h"

namespace zg::bench {

/// What a device's threads reach at most, a second: what "percent of limit" is a percentage of.
struct Limits {
  /// tools::matmul_peak(), FLOP; 0 where there is no kernel to compare with.
  double matmul_f32 = 0.0, matmul_bf16 = 0.0;
  double memory = 0.0;  ///< measure_memory_bandwidth(), bytes: y += x
  double update = 0.0;  ///< measure_update_bandwidth(), bytes: y += 1, twice y's
  double read = 0.0;    ///< measure_read_bandwidth(), bytes
};

/// The best of three rounds: some seconds and, while it runs, 512 MiB.
Limits measure_limits(const Device& device);

/// Of a GPU: copies on the device of up to 2 GiB, read and written, and products of up to
/// 8192 x 8192 by whatever multiplies there (Device::description() says). Takes 4 GiB.
Limits measure_gpu_limits(const Device& device);

/// Bytes a second that all threads read and write of an array too large for any cache, in place:
/// the best of several passes.
double measure_update_bandwidth(const Device& device);

/// Bytes a second that all threads read of an array too large for any cache, added up: the best of
/// several passes.
double measure_read_bandwidth(const Device& device);

}  // namespace zg::bench
