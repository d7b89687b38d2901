#include "bench/case.h"

#include <algorithm>
#include <chrono>

#include "bench/operands.h"
#include "zerograd/runtime/error.h"

namespace zg::bench {
namespace {

double seconds_of(const std::function<void()>& run, int64_t times,
                  const std::function<void()>& finish) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) run();
  finish();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
         static_cast<double>(times);
}

}  // namespace

std::string Rows::shape() const { return by({N, C}); }

Sizes::Sizes(Device::Type type)
    : on_accelerator(type != Device::Type::cpu),
      tokens{on_accelerator ? 65536 : 8192, on_accelerator ? 1024 : 768},
      logits{on_accelerator ? 8192 : 1024, 50257},
      scores{on_accelerator ? 98304 : 12288, 1024},
      hidden((on_accelerator ? 32768 : 4096) * hidden_width),
      flat(int64_t{on_accelerator ? 256 : 32} << 20),
      parameters(on_accelerator ? 800'000'000 : 100'000'000) {}

std::vector<Case> kernel_cases(Device::Type type) {
  const Sizes sizes(type);
  std::vector<Case> all;
  for (const auto& cases :
       {matmul_cases(sizes), attention_cases(sizes), row_cases(sizes), element_cases(sizes)})
    all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

Bound bound_of(const Case& c, const Limits& limits) {
  constexpr double cached = 1 << 20;  // bytes that stay in a second-level cache from run to run
  const double peak = c.dtype == DType::bf16 ? limits.matmul_bf16 : limits.matmul_f32;
  const Bound compute{"matmul peak", peak > 0.0 ? c.flops / peak : 0.0};
  const double read_s = c.read / limits.read;
  const double moved_s = c.bytes() / std::max(limits.memory, limits.update);
  const Bound memory = read_s > moved_s ? Bound{"read", read_s} : Bound{"memory", moved_s};
  const bool computes = compute.seconds > memory.seconds || (c.bytes() <= cached && peak > 0.0);
  return computes ? compute : memory;
}

std::vector<double> measure(const std::function<void()>& run, const Effort& effort,
                            const std::function<void()>& finish) {
  double once = seconds_of(run, 1, finish);
  for (int i = 1; i < effort.warm_up && once * i < effort.seconds / 4; ++i)
    once = std::min(once, seconds_of(run, 1, finish));
  const auto times = static_cast<int64_t>(std::max(1.0, effort.sample_seconds / once));
  const int count =
      std::clamp(static_cast<int>(effort.seconds / (once * static_cast<double>(times))),
                 effort.fewest, effort.samples);
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) seconds.push_back(seconds_of(run, times, finish));
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

std::optional<std::vector<double>> measure_on_accelerator(const Case& c, const Device& device) {
  const auto finish = [&] { device.compute().synchronize(); };
  try {
    const std::function<void()> run = c.make(device);
    run();  // some kernels are built at first use
    finish();
    return measure(run, {.sample_seconds = 2e-3}, finish);  // long against the wait for the device
  } catch (const OutOfMemory&) {
    return std::nullopt;
  }
}

double quantile(const std::vector<double>& sorted, double q) {
  return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
}

}  // namespace zg::bench
