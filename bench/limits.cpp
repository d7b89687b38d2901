#include "bench/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "kernels/peak.h"
#include "runtime/cpu/team.h"
#include "runtime/tensor.h"
#include "tools/speed.h"

namespace zg::bench {

double measure_read_bandwidth(const Device& device) {
  // Four places at once and lines asked for ahead: more of them are on the way than by one walk.
  constexpr int64_t numel = int64_t{64} << 20, grain = int64_t{1} << 17;
  constexpr int64_t places = 4, part = grain / places, line = 16, ahead = 32 * line;
  constexpr int passes = 6;
  const Tensor x = Tensor::full({numel}, 1.0, DType::i32, device);
  const int32_t* from = x.data<int32_t>();
  std::atomic<int64_t> total{0};  // that somebody asks for keeps the reading
  double best = 0.0;
  for (int pass = 0; pass < passes; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    cpu::parallel_for(device.traits().threads, numel, grain, [&](int64_t first, int64_t) {
      int32_t sums[line] = {};
      for (int64_t i = first; i < first + part; i += line)
        for (int64_t place = 0; place < places; ++place) {
          const int32_t* here = from + i + place * part;
          __builtin_prefetch(here + ahead);
          for (int64_t lane = 0; lane < line; ++lane) sums[lane] += here[lane];
        }
      total += *std::max_element(sums, sums + line);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(x.bytes()) / seconds.count());
  }
  return total > 0 ? best : 0.0;
}

Limits measure_limits(const Device& device) {
  constexpr int rounds = 3;  // apart from each other: others may be busy for a while
  Limits best;
  const auto keep = [](double& limit, double now) { limit = std::max(limit, now); };
  for (int round = 0; round < rounds; ++round) {
    keep(best.matmul_f32, tools::matmul_peak(device, DType::f32));
    keep(best.matmul_bf16, tools::matmul_peak(device, DType::bf16));
    keep(best.memory, measure_memory_bandwidth(device));
    keep(best.read, measure_read_bandwidth(device));
  }
  return best;
}

}  // namespace zg::bench
