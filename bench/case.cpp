#include "bench/case.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <ostream>

#include "kernels/peak.h"

namespace zg::bench {
namespace {

double seconds_of(const std::function<void()>& run, int64_t times) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
         static_cast<double>(times);
}

template <class... T>
std::string format(const char* pattern, T... values) {
  char line[256];
  std::snprintf(line, sizeof line, pattern, values...);
  return line;
}

}  // namespace

std::vector<double> measure(const std::function<void()>& run, const Effort& effort) {
  constexpr double tick = 2e-4;  // a sample is long against the clock's reading
  double once = seconds_of(run, 1);
  for (int i = 1; i < effort.warm_up && once * i < effort.seconds / 4; ++i)
    once = std::min(once, seconds_of(run, 1));
  const auto times = static_cast<int64_t>(std::max(1.0, tick / once));
  const int count =
      std::clamp(static_cast<int>(effort.seconds / (once * static_cast<double>(times))),
                 effort.fewest, effort.samples);
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) seconds.push_back(seconds_of(run, times));
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

void print_table(std::ostream& out, const std::vector<Case>& cases,
                 const std::vector<int>& threads) {
  out << "| case | dtype | threads | median ms | p10 - p90 | at median | best | % of peak | best "
         "|\n"
         "|---|---|---|---|---|---|---|---|---|\n";
  for (int count : threads) {
    const Device device = Device::cpu(0, {.threads = count});
    std::map<DType, double> peak;
    for (DType dtype : {DType::f32, DType::bf16}) peak[dtype] = measure_matmul_peak(device, dtype);
    for (const Case& c : cases) {
      const std::vector<double> seconds = measure(c.make(device));
      const auto quantile = [&](double q) {
        return seconds[static_cast<size_t>(q * static_cast<double>(seconds.size() - 1) + 0.5)];
      };
      const double work = c.flops > 0.0 ? c.flops : c.bytes, median = quantile(0.5);
      const char* unit = c.flops > 0.0 ? "GFLOP/s" : "GB/s";
      out << format("| %s | %s | %d | %.3f | %.3f - %.3f | %.1f %s | %.1f |", c.name.c_str(),
                    name_of(c.dtype), count, 1e3 * median, 1e3 * quantile(0.1), 1e3 * quantile(0.9),
                    1e-9 * work / median, unit, 1e-9 * work / seconds[0]);
      if (c.flops > 0.0)
        out << format(" %.0f %% | %.0f %% |\n", 100.0 * work / median / peak[c.dtype],
                      100.0 * work / seconds[0] / peak[c.dtype]);
      else
        out << " | |\n";
      out.flush();
    }
    for (const auto& [dtype, rate] : peak)
      out << format("| peak, registers only | %s | %d | | | | %.1f | | |\n", name_of(dtype), count,
                    1e-9 * rate);
  }
}

}  // namespace zg::bench
