#pragma once

#include <functional>
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

}  // namespace zg::bench
