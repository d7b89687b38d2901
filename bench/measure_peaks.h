#pragma once

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/step_time.h"

namespace zg::bench {

/// The rates of this CPU with the threads of `device`, for predict(), and the shares of them that
/// the library's ops reach in their timed cases (bench/case.h), of three sizes each. Operands are
/// spread over more memory than the caches hold, as those of a training step are. Takes a few
/// minutes and up to 1 GiB. Throws Unsupported for another device than a CPU.
Peaks measure_peaks(const Device& device);

/// One timed call of an op.
struct TimedCall {
  LaunchRow launch;
  double seconds = 0.0;
};
/// The shares of the peaks that these calls reach: first the median of each class, then for each op
/// and dtype a curve over the size of a launch. Products and attention have shares of
/// `peaks.operations`, other classes of `peaks.bandwidth`. Calls of about equal size are one point,
/// their median.
std::vector<Efficiency> fit_efficiencies(const std::vector<TimedCall>& calls, const Peaks& peaks);

}  // namespace zg::bench
