// Kernels that miss their limit for one planted cause each: bench::explain must name it first. Then
// the limits beside a triad (J. McCalpin, STREAM) and a loop of multiply-adds of this file.
//     cmake --build BUILD --target planted_causes && BUILD/tests/planted_causes [0|1|2|3|limits]
// It needs AVX2 and two idle cores. Exit status 1 if a cause is not named first.
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "zerograd/bench.h"
#include "zerograd/kernels/matmul/peak.h"

using namespace zg;

namespace {

constexpr int64_t huge_page = 2 << 20, page = 4096, lane_count = 8, passes = 16;

/// Memory of its own, written once, so that each page exists.
std::shared_ptr<float> memory(int64_t bytes, bool huge_pages) {
  const auto size = static_cast<size_t>(bytes + 2 * huge_page);
  void* const start =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) std::abort();
  madvise(start, size, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  const auto address = (reinterpret_cast<uintptr_t>(start) + huge_page - 1) / huge_page * huge_page;
  auto* const begin = reinterpret_cast<float*>(address);
  std::fill(begin, begin + (bytes + page) / 4, 1.0f);
  return {begin, [=](float*) { munmap(start, size); }};
}

struct Size {
  int64_t rows, width, pitch;  // elements; a multiple of 16
};

/// y = y * a + b by rows, and each thread's count of rows. Passes, so that a call costs little.
__attribute__((target("avx2,fma"))) void update_rows(float* begin, const Size& size, int thread,
                                                     int threads, volatile double* count) {
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1.0f);
  for (int64_t turn = thread; turn < passes * size.rows; turn += threads) {
    const int64_t row = turn % size.rows;
    float* const y = begin + row * size.pitch;
    int64_t i = 0;
    for (; i + lane_count <= size.width; i += lane_count)
      _mm256_storeu_ps(y + i, _mm256_fmadd_ps(_mm256_loadu_ps(y + i), a, b));
    for (; i < size.width; ++i) {
      float value = y[i] * 0.5f + 1.0f;
      __asm__ volatile("" : "+x"(value));  // one at a time
      y[i] = value;
    }
    *count = *count + 1.0;
  }
}

bench::Trials rows_of(const Size& full) {
  return [full](const bench::Conditions& now) -> std::optional<bench::Trial> {
    Size size = full;
    if (!now.whole) size.width -= 1;
    const int64_t bytes = 4 * size.rows * size.pitch + page;
    const auto values = memory(bytes, now.huge_pages);
    const auto counts = memory(page, true);
    const auto work = static_cast<double>(size.rows * size.width);
    float* const begin = values.get() + (now.aligned ? 0 : 1);
    volatile double* const count = reinterpret_cast<double*>(counts.get());
    const int64_t apart = now.apart ? 32 : 1;
    return bench::Trial{{.name = "rows",
                         .shape = std::to_string(size.rows) + "x" + std::to_string(size.width),
                         .flops = 2 * passes * work,
                         .read = 4 * work,
                         .written = 4 * work},
                        [=, threads = now.threads, keep = std::pair(values, counts)] {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
                          for (int thread = 0; thread < threads; ++thread)
                            update_rows(begin, size, thread, threads, count + thread * apart);
                        }};
  };
}

bool names_first(bench::Cause planted, const bench::Conditions& as_is, const Size& size) {
  const bench::Explanation found =
      bench::explain(as_is, rows_of(size), {.effort = {.limit_rounds = 1, .seconds = 0.3}});
  const bench::Influence& first = found.influences.front();
  const bool is_first = first.cause == planted && first.share > 0.0;
  std::printf("planted: %s; named first: %s\n\n%s\n", name_of(planted), name_of(first.cause),
              bench::table_of(found).c_str());
  std::fflush(stdout);
  return is_first;
}

bool cause(int number) {
  using bench::Cause;
  return number == 0   ? names_first(Cause::misalignment, {.aligned = false}, {4096, 16, 80})
         : number == 1 ? names_first(Cause::small_pages, {.huge_pages = false}, {8192, 16, 1040})
         : number == 2
             ? names_first(Cause::shared_lines, {.threads = 2, .apart = false}, {4096, 16, 16})
             : names_first(Cause::tail, {.whole = false}, {64, 16, 16});
}

double seconds_of(const auto& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// x += factor * y, two times as many elements read as written. Stores go through the caches.
__attribute__((target("avx2,fma"))) void triad(float* x, const float* y, int64_t n) {
  const __m256 factor = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < n; i += lane_count)
    _mm256_storeu_ps(x + i,
                     _mm256_fmadd_ps(_mm256_loadu_ps(y + i), factor, _mm256_loadu_ps(x + i)));
}

__attribute__((target("avx2,fma"))) float multiply_adds(int64_t steps) {
  __m256 sums[10];
  for (int i = 0; i < 10; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1.0f);
  for (int64_t step = 0; step < steps; ++step)
#pragma GCC unroll 10
    for (int i = 0; i < 10; ++i) sums[i] = _mm256_fmadd_ps(sums[i], a, b);
  for (int i = 1; i < 10; ++i) sums[0] = _mm256_add_ps(sums[0], sums[i]);
  return _mm256_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f"))) float wide_multiply_adds(int64_t steps) {
  __m512 sums[10];
  for (int i = 0; i < 10; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1.0f);
  for (int64_t step = 0; step < steps; ++step)
#pragma GCC unroll 10
    for (int i = 0; i < 10; ++i) sums[i] = _mm512_fmadd_ps(sums[i], a, b);
  for (int i = 1; i < 10; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  return _mm512_cvtss_f32(sums[0]);
}

void limits() {
  const Device device = Device::cpu(0, {.threads = 1});
  const bool is_wide = device.traits().isa >= Isa::avx512;
  const auto own_loop = is_wide ? wide_multiply_adds : multiply_adds;
  const double operations = is_wide ? 320.0 : 160.0;  // of a step
  const int64_t bytes = 384 << 20, n = bytes / 12 / 64 * 64;
  const Tensor array = Tensor::full({bytes / 4}, 1.0, DType::f32, device);
  float* const x = array.data<float>();
  double add = 0, own_add = 0, peak = 0, own_peak = 0;
  volatile float used = 0;
  for (int round = 0; round < 15; ++round) {  // in turns
    add = std::max(add, measure_memory_rates(array).add);
    for (int pass = 0; pass < 3; ++pass)
      own_add = std::max(own_add, 12.0 * n / seconds_of([&] { triad(x, x + n, n); }));
    peak = std::max(peak, measure_matmul_peak(device, DType::f32));
    for (int pass = 0; pass < 50; ++pass)
      own_peak =
          std::max(own_peak, operations * 100'000 / seconds_of([&] { used = own_loop(100'000); }));
  }
  std::printf(
      "| limit | measured | by the loop of this file | ratio |\n|---|---:|---:|---:|\n"
      "| memory, GB/s | %.2f | %.2f | %.3f |\n| multiply-adds, GFLOP/s | %.1f | %.1f | %.3f |\n",
      1e-9 * add, 1e-9 * own_add, add / own_add, 1e-9 * peak, 1e-9 * own_peak, peak / own_peak);
}

}  // namespace

int main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "";
  if (what.empty() || what == "limits") limits();
  bool all = true;
  for (int number = 0; number < 4; ++number)
    if (what.empty() || what == std::to_string(number)) all &= cause(number);
  return all ? 0 : 1;
}
