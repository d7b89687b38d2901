#include "zerograd/kernels/matmul/peak.h"

#include <algorithm>
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

double measure_memory_bandwidth(const Device& device) {
  if (device.type() != Device::Type::cpu)
    raise<Unsupported>("measure_memory_bandwidth: expected a cpu, got {}", device.name());
  constexpr int64_t numel = int64_t{32} << 20, grain = int64_t{1} << 16;
  constexpr int passes = 6;
  const Tensor x = Tensor::full({numel}, 1.0, DType::f32, device);
  const Tensor y = Tensor::full({numel}, 2.0, DType::f32, device);
  const float* from = x.data<float>();
  float* to = y.data<float>();
  double best = 0.0;
  for (int pass = 0; pass < passes; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    cpu::parallel_for(device.traits().threads, numel, grain, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) to[i] += from[i];
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, 3.0 * numel * sizeof(float) / seconds.count());
  }
  return best;
}

}  // namespace zg
