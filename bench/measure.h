#pragma once

#include <functional>
#include <string>
#include <vector>

#include "zerograd/bench.h"

namespace zg::bench {

/// Seconds of one run, sorted. Each sample is some runs and then `finish`, which waits for the end
/// of what they queued. ConfigError for an effort that cannot be.
std::vector<double> measure(
    const std::function<void()>& run, const Effort& effort = {},
    const std::function<void()>& finish = [] {});
/// The same on a device: on an accelerator each sample waits for its compute stream, and one run
/// comes before everything else, for some kernels are built at their first use.
std::vector<double> measure(const Device& device, const std::function<void()>& run,
                            const Effort& effort = {});

/// The nearest of sorted values.
double quantile(const std::vector<double>& sorted, double q);

/// ConfigError for an effort that cannot be.
void validate(const Effort& effort);

/// The smallest cache of this machine that holds so many bytes when `threads` cores share them,
/// "L2"; "part of L3" where not even the last one does; empty where the system names no cache.
/// Operands that stay in a cache from run to run are not bounded by a limit of memory.
std::string cache_of(double bytes, int threads);

/// On a CPU the best of so many rounds, which take up to 512 MiB. On an accelerator
/// measure_copy_rate() as every limit of memory, and measure_product_rate().
Limits measure_limits(const Device& device, int rounds);

/// Bytes a second that copies on an accelerator read and write, of up to 2 GiB; takes up to 4 GiB.
double measure_copy_rate(const Device& device);

/// FLOP/s of products on an accelerator, of up to 8192 x 8192, by whatever multiplies there
/// (Device::description() says); takes up to 800 MB. Throws Unsupported where nothing does.
double measure_product_rate(const Device& device, DType dtype);

/// Bytes a second that all threads read of an array too large for any cache, added up: the best of
/// several passes.
double measure_read_bandwidth(const Device& device);

}  // namespace zg::bench
