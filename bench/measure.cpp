#include "bench/measure.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "bench/operands.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/matmul/peak.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/error.h"

namespace zg::bench {
namespace {

double seconds_of(const std::function<void()>& run, int64_t times,
                  const std::function<void()>& finish) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) run();
  finish();
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  // The smallest time of a run: the clock may not advance during an empty one.
  constexpr double tick = 1e-9;
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
                            const std::function<void()>& finish,
                            const std::function<void()>& between,
                            const std::function<void()>& before) {
  validate(effort);
  const auto sample = [&](int64_t times) {
    if (before) before();
    return seconds_of(run, times, finish);
  };
  double once = sample(1);
  for (int i = 1; i < effort.warm_up && once * i < effort.seconds / 4; ++i)
    once = std::min(once, sample(1));
  constexpr double clock_read = 2e-4;  // much longer than reading the clock takes
  const double least = before ? 0.0 : effort.sample_seconds.value_or(clock_read);
  const auto times = static_cast<int64_t>(std::max(1.0, least / once));
  const double in_time = effort.seconds / (once * static_cast<double>(times));
  const int fewest = std::min(effort.fewest, effort.samples);
  const auto count = static_cast<int>(
      std::clamp(in_time, static_cast<double>(fewest), static_cast<double>(effort.samples)));
  std::vector<double> seconds;
  seconds.reserve(static_cast<size_t>(count));
  const int part = (count + 3) / 4;
  for (int i = 0; i < count; ++i) {
    if (between && i % part == 0) between();
    seconds.push_back(sample(times));
  }
  if (between) between();
  std::ranges::sort(seconds);
  return seconds;
}

namespace {

/// Bytes of an array that no cache holds: server processors have caches of 256 MiB.
constexpr int64_t large = int64_t{512} << 20;

/// Bytes of an array that the caches of this machine do not hold; `large` if it does not tell them.
int64_t beyond_caches() {
  const int64_t last = std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE));
  return last > 0 ? std::clamp(4 * last, int64_t{64} << 20, large) : large;
}

Tensor array_of(const Device& device, int64_t bytes) {
  return Tensor::full({bytes / 4}, 1.0, DType::f32, device);
}

/// Memory that takes the place of operands in the caches of all cores of a device.
class OtherMemory {
 public:
  explicit OtherMemory(const Device& device)
      : array_(array_of(Device::cpu(0, {.threads = device.traits().threads, .separate = true}),
                        beyond_caches())) {}
  void displace_caches() const {
    const int threads = array_.device().traits().threads;
    float* const x = array_.data<float>();
    constexpr int64_t line = 16;  // elements
    cpu::parallel_for(threads, array_.numel(), array_.numel() / threads,
                      [&](int64_t first, int64_t last) {
                        for (int64_t i = first; i < last; i += line) x[i] += 1.0f;
                      });
  }

 private:
  Tensor array_;
};

}  // namespace

std::vector<double> measure(const Device& device, const std::function<void()>& run,
                            const Effort& effort, const std::function<void()>& between) {
  if (device.type() == Device::Type::cpu) {
    std::function<void()> before;
    if (effort.cold) before = [other = OtherMemory(device)] { other.displace_caches(); };
    return measure(
        run, effort, [] {}, between, before);
  }
  const auto finish = [&] { device.compute().synchronize(); };
  validate(effort);
  run();
  finish();
  Effort longer = effort;
  if (!effort.sample_seconds)
    longer.sample_seconds = 2e-3;  // much longer than the wait for the device takes
  return measure(run, longer, finish);
}

namespace {

/// CPU seconds that all programs used on the cores of this process since the system started.
double busy_seconds() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return 0.0;
  std::ifstream file("/proc/stat");
  double ticks = 0.0;
  std::string name;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    words >> name;
    if (name.size() < 4 || !name.starts_with("cpu")) continue;
    const int core = std::atoi(name.c_str() + 3);
    if (core >= CPU_SETSIZE || !CPU_ISSET(core, &cores)) continue;
    double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft_irq = 0, steal = 0;
    words >> user >> nice >> system >> idle >> wait >> irq >> soft_irq >> steal;
    ticks += user + nice + system + irq + soft_irq + steal;
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

/// CPU seconds of this process and of its children that have ended.
double own_seconds() {
  double seconds = 0.0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage use{};
    getrusage(who, &use);
    for (const timeval& time : {use.ru_utime, use.ru_stime})
      seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  return seconds;
}

}  // namespace

OtherPrograms::OtherPrograms()
    : busy_(busy_seconds()), own_(own_seconds()), begin_(std::chrono::steady_clock::now()) {}

double OtherPrograms::share() const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
  const double others = busy_seconds() - busy_ - (own_seconds() - own_);
  // Ticks of 10 ms say little of a short time.
  if (elapsed.count() < 0.1) return 0.0;
  return std::max(0.0, others) / (elapsed.count() * available_cores());
}

double quantile(const std::vector<double>& sorted, double q) {
  return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
}

namespace {

/// The rate of an accelerator. Doubles the size until a run takes long enough, the size is
/// `largest` or the memory is exhausted.
template <class WorkOf>
double rate(const Device& device, int64_t smallest, int64_t largest, const WorkOf& work_of) {
  constexpr double long_enough = 0.05;  // seconds; then larger sizes are not needed
  const auto best_of = [&](int rounds, const std::function<void()>& run) {
    double best = 1e9;
    for (int round = 0; round < rounds; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      run();
      device.compute().synchronize();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      best = std::min(best, seconds.count());
    }
    return best;
  };
  double found = 0.0;
  for (int64_t size = smallest; size <= largest; size *= 2) try {
      const auto [amount, run] = work_of(size);
      if (size == smallest) best_of(1, run);  // some kernels are built at first use
      const double first = best_of(1, run);
      found = amount / (first > long_enough ? first : best_of(8, run));
      if (first > long_enough) break;
    } catch (const OutOfMemory&) {
      if (found > 0.0) break;
      throw;
    }
  return found;
}

void keep(double& limit, double now) { limit = std::max(limit, now); }

void keep(Limits& limits, const MemoryRates& now) {
  keep(limits.memory, now.add);
  keep(limits.update, now.update);
  keep(limits.read, now.read);
}

}  // namespace

double measure_read_bandwidth(const Device& device) {
  return measure_memory_rates(array_of(device, large)).read;
}

double measure_copy_rate(const Device& device) {
  return rate(device, int64_t{1} << 20, int64_t{512} << 20, [&](int64_t size) {
    const Tensor from = Tensor::zeros({size}, DType::f32, device);
    const Tensor to = Tensor::zeros({size}, DType::f32, device);
    return std::pair(2.0 * static_cast<double>(to.bytes()),
                     std::function<void()>([=] { copy(from, to, device.compute()); }));
  });
}

double measure_product_rate(const Device& device, DType dtype) {
  return rate(device, 256, 8192, [&](int64_t side) {
    const Matmul call{.a = operand({side, side}, dtype, device, 1),
                      .b = operand({side, side}, dtype, device, 2),
                      .c = Tensor::zeros({side, side}, dtype, device),
                      .M = side,
                      .N = side,
                      .K = side};
    return std::pair(2.0 * static_cast<double>(side * side * side),
                     std::function<void()>([=] { kernels::matmul(call, device.compute()); }));
  });
}

std::string cache_of(double bytes, int threads) {
  const struct {
    const char* name;
    int number;  // argument of sysconf()
    int copies;  // number of such caches: one for each core, or 1 if all cores share it
  } levels[] = {{"L1", _SC_LEVEL1_DCACHE_SIZE, threads},
                {"L2", _SC_LEVEL2_CACHE_SIZE, threads},
                {"L3", _SC_LEVEL3_CACHE_SIZE, 1},
                {"L4", _SC_LEVEL4_CACHE_SIZE, 1}};
  std::string last;
  for (const auto& level : levels) {
    const int64_t size = sysconf(level.number);
    if (size <= 0) continue;
    if (bytes <= static_cast<double>(size * level.copies)) return level.name;
    last = std::string("part of ") + level.name;
  }
  return last;
}

Limits measure_limits(const Device& device, int rounds) {
  Limits best;
  if (device.type() != Device::Type::cpu) {
    best.memory = best.update = best.read = measure_copy_rate(device);
    best.matmul_f32 = measure_product_rate(device, DType::f32);
    best.matmul_bf16 = measure_product_rate(device, DType::bf16);
    return best;
  }
  // Each round measures all limits. So the repeats of one limit are far apart in time: other
  // programs may be busy for a while.
  for (int round = 0; round < rounds; ++round) {
    keep(best.matmul_f32, matmul_peak_or_zero(device, DType::f32));
    keep(best.matmul_bf16, matmul_peak_or_zero(device, DType::bf16));
    keep(best, measure_memory_rates(array_of(device, large)));
  }
  return best;
}

LimitsBeside::LimitsBeside(const Device& device, const Work& work, bool computes, bool cold)
    : device_(device), dtype_(work.dtype) {
  constexpr double smallest = 1 << 16;
  const auto bytes = static_cast<int64_t>(std::clamp(work.bytes(), smallest, double{large}));
  if (!computes) array_ = array_of(device, std::max(bytes, cold ? beyond_caches() : 0));
}

void LimitsBeside::sample() {
  if (array_)
    keep(limits_, measure_memory_rates(*array_));
  else if (dtype_ == DType::bf16)
    keep(limits_.matmul_bf16, matmul_peak_or_zero(device_, DType::bf16));
  else
    keep(limits_.matmul_f32, matmul_peak_or_zero(device_, DType::f32));
}

}  // namespace zg::bench
