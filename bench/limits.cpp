#include "bench/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "kernels/peak.h"
#include "runtime/cpu/team.h"
#include "runtime/tensor.h"
#include "tools/speed.h"

namespace zg::bench {

namespace {

// 512 MiB: server processors keep 256 of them. Four places at once and lines asked for ahead: more
// of them are on the way than by one walk.
constexpr int64_t numel = int64_t{128} << 20, grain = int64_t{1} << 17;
constexpr int64_t places = 4, part = grain / places, line = 16, ahead = 32 * line;

/// Seconds of the fastest pass over x by f(a line of 16 elements), all of it seen once.
template <class F>
double walk(const Device& device, const Tensor& x, const F& f) {
  constexpr int passes = 6;
  int32_t* begin_of_x = x.data<int32_t>();
  double best = 1e9;
  for (int pass = 0; pass < passes; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    cpu::parallel_for(device.traits().threads, numel, grain, [&](int64_t first, int64_t) {
      auto work = f();
      for (int64_t i = first; i < first + part; i += line)
        for (int64_t place = 0; place < places; ++place) {
          int32_t* here = begin_of_x + i + place * part;
          __builtin_prefetch(here + ahead);
          work(here);
        }
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::min(best, seconds.count());
  }
  return best;
}

/// Adds up what it is shown; that somebody may ask for the sum keeps the reading.
struct Sum {
  int32_t sums[line] = {};
  std::atomic<int64_t>& total;

  explicit Sum(std::atomic<int64_t>& t) : total(t) {}
  ~Sum() { total += *std::max_element(sums, sums + line); }
  void operator()(const int32_t* here) {
    for (int64_t lane = 0; lane < line; ++lane) sums[lane] += here[lane];
  }
};

}  // namespace

double measure_read_bandwidth(const Device& device) {
  const Tensor x = Tensor::full({numel}, 1.0, DType::i32, device);
  std::atomic<int64_t> total{0};
  const double seconds = walk(device, x, [&] { return Sum(total); });
  return total > 0 ? static_cast<double>(x.bytes()) / seconds : 0.0;
}

double measure_update_bandwidth(const Device& device) {
  const Tensor y = Tensor::full({numel}, 1.0, DType::i32, device);
  const double seconds = walk(device, y, [] {
    return [](int32_t* here) {
      for (int64_t lane = 0; lane < line; ++lane) here[lane] += 1;
    };
  });
  return 2.0 * static_cast<double>(y.bytes()) / seconds;
}

Limits measure_limits(const Device& device) {
  constexpr int rounds = 3;  // apart from each other: others may be busy for a while
  Limits best;
  const auto keep = [](double& limit, double now) { limit = std::max(limit, now); };
  for (int round = 0; round < rounds; ++round) {
    keep(best.matmul_f32, tools::matmul_peak(device, DType::f32));
    keep(best.matmul_bf16, tools::matmul_peak(device, DType::bf16));
    keep(best.memory, measure_memory_bandwidth(device));
    keep(best.update, measure_update_bandwidth(device));
    keep(best.read, measure_read_bandwidth(device));
  }
  return best;
}

}  // namespace zg::bench
