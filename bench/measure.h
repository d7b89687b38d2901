#pragma once

#include <functional>
#include <string>
#include <vector>

#include "zerograd/bench.h"

namespace zg::bench {

/// Returns the seconds of one run for each sample, sorted. A sample is several runs and then a call
/// of `finish`, which waits for their queued work. Throws ConfigError for an invalid effort.
std::vector<double> measure(
    const std::function<void()>& run, const Effort& effort = {},
    const std::function<void()>& finish = [] {});
/// Measures on a device. On an accelerator `finish` waits for the compute stream, and one run
/// precedes all others, because some kernels are built at their first use.
std::vector<double> measure(const Device& device, const std::function<void()>& run,
                            const Effort& effort = {});

/// The quantile q of sorted values, without interpolation.
double quantile(const std::vector<double>& sorted, double q);

/// Throws ConfigError for an invalid effort.
void validate(const Effort& effort);

/// The name of the smallest cache of this machine that can hold `bytes` bytes when `threads` cores
/// share them, "L2". "part of L3" if the bytes do not fit in the last cache; empty if the system
/// reports no caches. Operands that stay in a cache between runs can be faster than the memory
/// limits.
std::string cache_of(double bytes, int threads);

/// Measures the limits of a device. On a CPU: the best of `rounds` rounds; takes up to 512 MiB. On
/// an accelerator: measure_copy_rate() for every memory limit, and measure_product_rate().
Limits measure_limits(const Device& device, int rounds);

/// Bytes per second that copies of up to 2 GiB on an accelerator read and write; takes up to 4 GiB.
double measure_copy_rate(const Device& device);

/// FLOP/s of matmul on an accelerator, with matrices of up to 8192 x 8192; takes up to 800 MB.
/// Device::description() names the library or units that multiply. Throws Unsupported for a dtype
/// without a matmul kernel.
double measure_product_rate(const Device& device, DType dtype);

/// Bytes per second that all threads together read from an array too large for any cache, while
/// they add it up: the best of several passes.
double measure_read_bandwidth(const Device& device);

}  // namespace zg::bench
