#include "zerograd/kernels/matmul/peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/matmul/matmul_cpu.h"
#include "zerograd/kernels/matmul/peak_table.h"
#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/tensor.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace cpu {
ZG_DECLARE_LEVELS(PeakTable, peak_table)
}

double measure_matmul_peak(const Device& device, DType dtype) {
  const Device::Traits& traits = device.traits();
  if (device.type() != Device::Type::cpu || (dtype != DType::f32 && dtype != DType::bf16))
    raise<Unsupported>("measure_matmul_peak: expected f32 or bf16 on a cpu, got {} on {}", dtype,
                       device);
  const cpu::PeakTable& table = ZG_AT_PRODUCT_LEVEL(traits.isa, peak_table);
  const cpu::TileTable* tiles = dtype == DType::bf16 ? cpu::tile_table(traits.isa) : nullptr;
  const cpu::PeakLoop& loop = tiles ? tiles->peak : dtype == DType::f32 ? table.f32 : table.bf16;
  constexpr int runs = 50;
  constexpr int64_t steps = 1 << 17;  // 0.3 to 1 ms, shorter than a scheduler's time slice
  std::vector<float> results(static_cast<size_t>(traits.threads));
  double best = 0.0;
  for (int run = 0; run < runs; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    cpu::team(traits.threads, traits.threads,
              [&](int64_t task, int) { results[static_cast<size_t>(task)] = loop.run(steps); });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, loop.flops_per_step * steps * traits.threads / seconds.count());
  }
  return best;
}

double matmul_peak_or_zero(const Device& device, DType dtype) {
  try {
    return measure_matmul_peak(device, dtype);
  } catch (const Unsupported&) {
    return 0.0;
  }
}

MemoryRates measure_memory_rates(const Tensor& array) {
  const Device& device = array.device();
  if (device.type() != Device::Type::cpu || array.dtype() != DType::f32)
    raise<Unsupported>("measure_memory_rates: expected f32 on a cpu, got {} on {}", array.dtype(),
                       device);
  constexpr int64_t line = 64;  // elements of which each chunk has a multiple
  const int threads = device.traits().threads;
  const cpu::MemoryTable& loops = ZG_AT_PRODUCT_LEVEL(device.traits().isa, peak_table).memory;
  const int64_t half = array.numel() / 2 / line * line, third = array.numel() / 3 / line * line;
  if (third == 0)
    raise<ConfigError>("measure_memory_rates: expected {} elements or more, got {}", 3 * line,
                       array.numel());
  float* const x = array.data<float>();
  std::atomic<float> used = 0.0f;
  // Bytes a second of the fastest of several passes over n elements, each moved `times` times.
  const auto rate = [&](int64_t n, int times, const auto& pass) {
    constexpr double enough = 2e-3;  // seconds of short passes
    const int64_t grain =
        std::clamp((n / threads + line - 1) / line * line, line, int64_t{1} << 16);
    double best = 1e9, sum = 0.0;
    for (int passes = 0; passes < 3 || (sum < enough && passes < 50); ++passes) {
      const auto begin = std::chrono::steady_clock::now();
      cpu::parallel_for(threads, n, grain,
                        [&](int64_t first, int64_t last) { pass(first, last - first); });
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      best = std::min(best, seconds.count()), sum += seconds.count();
    }
    return static_cast<double>(times * n) * sizeof(float) / best;
  };
  return {.read = rate(2 * half, 1, [&](int64_t i, int64_t n) { used = loops.read(x + i, n); }),
          .update = rate(half, 2, [&](int64_t i, int64_t n) { loops.update(x + i, n); }),
          .add = rate(third, 3, [&](int64_t i, int64_t n) { loops.add(x + i, x + third + i, n); })};
}

double measure_memory_bandwidth(const Device& device) {
  if (device.type() != Device::Type::cpu)
    raise<Unsupported>("measure_memory_bandwidth: expected a cpu, got {}", device.name());
  constexpr int64_t numel = int64_t{64} << 20;
  return measure_memory_rates(Tensor::full({numel}, 1.0, DType::f32, device)).add;
}

}  // namespace zg
