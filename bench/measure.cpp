#include "bench/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "zerograd/runtime/error.h"

namespace zg::bench {
namespace {

double seconds_of(const std::function<void()>& run, int64_t times,
                  const std::function<void()>& finish) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) run();
  finish();
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  constexpr double tick = 1e-9;  // a clock may show none for an empty run
  return std::max(all.count(), tick) / static_cast<double>(times);
}

void require(bool is_right, const char* field, const char* expected, double got) {
  if (!is_right)
    throw ConfigError(std::string("bench: effort.") + field + ": expected " + expected + ", got " +
                      std::to_string(got));
}

}  // namespace

void validate(const Effort& effort) {
  require(effort.limit_rounds >= 1, "limit_rounds", "1 or more", effort.limit_rounds);
  require(effort.warm_up >= 0, "warm_up", "0 or more", effort.warm_up);
  require(effort.fewest >= 1, "fewest", "1 or more", effort.fewest);
  require(effort.samples >= 1, "samples", "1 or more", effort.samples);
  const auto is_time = [](double seconds) { return seconds >= 0.0 && std::isfinite(seconds); };
  require(is_time(effort.seconds), "seconds", "0 or more", effort.seconds);
  const double sample = effort.sample_seconds.value_or(0.0);
  require(is_time(sample), "sample_seconds", "0 or more", sample);
}

std::vector<double> measure(const std::function<void()>& run, const Effort& effort,
                            const std::function<void()>& finish) {
  validate(effort);
  double once = seconds_of(run, 1, finish);
  for (int i = 1; i < effort.warm_up && once * i < effort.seconds / 4; ++i)
    once = std::min(once, seconds_of(run, 1, finish));
  constexpr double clock_read = 2e-4;  // long against reading the clock
  const auto times =
      static_cast<int64_t>(std::max(1.0, effort.sample_seconds.value_or(clock_read) / once));
  const double in_time = effort.seconds / (once * static_cast<double>(times));
  const int fewest = std::min(effort.fewest, effort.samples);
  const auto count = static_cast<int>(
      std::clamp(in_time, static_cast<double>(fewest), static_cast<double>(effort.samples)));
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) seconds.push_back(seconds_of(run, times, finish));
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

std::vector<double> measure(const Device& device, const std::function<void()>& run,
                            const Effort& effort) {
  if (device.type() == Device::Type::cpu) return measure(run, effort);
  const auto finish = [&] { device.compute().synchronize(); };
  validate(effort);
  run();
  finish();
  Effort longer = effort;
  if (!effort.sample_seconds) longer.sample_seconds = 2e-3;  // long against the wait for the device
  return measure(run, longer, finish);
}

double quantile(const std::vector<double>& sorted, double q) {
  return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
}

}  // namespace zg::bench
