#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/bench.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/step_time.h"
#include "zerograd/runtime/tensor.h"

namespace zg::bench {

/// Returns the seconds of one run for each sample, sorted. A sample is several runs and then a call
/// of `finish`, which waits for their queued work. Calls `between` before the first sample, after
/// the last, and three times between them. With `before`, which is called before each sample, a
/// sample is one run. Throws ConfigError for an invalid effort.
std::vector<double> measure(
    const std::function<void()>& run, const Effort& effort = {},
    const std::function<void()>& finish = [] {}, const std::function<void()>& between = {},
    const std::function<void()>& before = {});
/// Measures on a device. On an accelerator `finish` waits for the compute stream, and one run
/// precedes all others, because some kernels are built at their first use; `between` is for CPUs.
std::vector<double> measure(const Device& device, const std::function<void()>& run,
                            const Effort& effort = {}, const std::function<void()>& between = {});

/// The quantile q of sorted values, without interpolation.
double quantile(const std::vector<double>& sorted, double q);

/// Throws ConfigError for an invalid effort.
void validate(const Effort& effort);

/// Measures the use of this process's cores by other programs, from the construction on.
class OtherPrograms {
 public:
  OtherPrograms();
  double share() const;  ///< of the time of all these cores; 0 if the system does not say

 private:
  double busy_, own_;  ///< CPU seconds until the construction
  std::chrono::steady_clock::time_point begin_;
};
/// Above this share a row has no percentage of a limit: the limit was measured at another time.
constexpr double share_of_busy_machine = 0.1;

/// The name of the smallest cache of this machine that can hold `bytes` bytes when `threads` cores
/// share them, "L2". "part of L3" if the bytes do not fit in the last cache; empty if the system
/// reports no caches. Operands that stay in a cache between runs can be faster than the memory
/// limits.
std::string cache_of(double bytes, int threads);

/// Measures the limits of a device. On a CPU: the best of `rounds` rounds; takes up to 512 MiB. On
/// an accelerator: measure_copy_rate() for every memory limit, and measure_product_rate().
Limits measure_limits(const Device& device, int rounds);

/// The limits that bound a row on a CPU, measured between its samples: of products, or of memory
/// with as many bytes as the work has, so that a cache which holds the operands counts. `cold`: of
/// more bytes than the caches hold.
class LimitsBeside {
 public:
  LimitsBeside(const Device& device, const Work& work, bool computes, bool cold);
  void sample();
  const Limits& limits() const { return limits_; }  ///< the best so far; 0: not measured

 private:
  Device device_;
  DType dtype_;
  std::optional<Tensor> array_;
  Limits limits_;
};

/// Bytes per second that copies of up to 2 GiB on an accelerator read and write; takes up to 4 GiB.
double measure_copy_rate(const Device& device);

/// FLOP/s of matmul on an accelerator, with matrices of up to 8192 x 8192; takes up to 800 MB.
/// Device::description() names the library or units that multiply. Throws Unsupported for a dtype
/// without a matmul kernel.
double measure_product_rate(const Device& device, DType dtype);

/// Bytes per second that all threads together read from an array too large for any cache, while
/// they add it up: the best of several passes.
double measure_read_bandwidth(const Device& device);

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

/// The value with this number of decimals.
std::string fixed(double value, int digits);

// Single lines of table(), for a program that prints each line when it is measured, and parts of
// JSON records.

std::string table_head();
std::string lines_of_limits(const Report& report);
std::string line_of(const Row& row);
/// The line below the table that explains cache names after percentages, "312 % (L3)". Empty if no
/// row has a cache name.
std::string note_of(const std::vector<Report>& reports);

/// `git describe` of the sources, with "-dirty" after changes; empty outside of a repository.
extern const char* const commit;

/// "AMD EPYC", as Linux names it; "unknown" if it does not.
std::string processor_name();

/// The machine in a record of `zerograd bench`: the CPU's instruction set and cores, or the first
/// accelerator's description and their number.
nlohmann::ordered_json machine_json(Device::Type type = Device::Type::cpu);

}  // namespace zg::bench
