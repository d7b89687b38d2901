// OpenCL's functions on the test driver against their definitions.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>

#include "tests/hpu/level_zero.h"

using namespace zg::test;

namespace {

constexpr uint32_t items = 31, groups = 3, count = items * groups;

std::vector<float> random_floats(size_t n, float low, float high) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> between(low, high);
  std::vector<float> values(n);
  for (float& v : values) v = between(random);
  return values;
}

template <class T>
T* room(LevelZero& l0, size_t n) {
  return static_cast<T*>(l0.allocate(n * sizeof(T)));
}

/// Whether a is at most `ulps` steps from b. A subnormal may be 0.
bool near(float a, float b, int ulps) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return true;
  constexpr float least = std::numeric_limits<float>::min();
  const float size = std::max(std::fabs(b), least), step = std::nextafter(size, INFINITY) - size;
  return ulps > 0 && std::fabs(a - b) <= static_cast<float>(ulps) * step + least;
}
bool near(int a, int b, int) { return a == b; }
bool near(uint32_t a, uint32_t b, int) { return a == b; }

/// Row r of the kernel's result is functions[r] of x and y, element by element, with an error of
/// ulps[r].
template <class Out, class In>
void check_rows(const char* kernel, const std::vector<std::function<Out(In, In)>>& functions,
                const std::vector<In>& x, const std::vector<In>& y, std::vector<int> ulps = {}) {
  ulps.resize(functions.size());
  LevelZero l0;
  Out* const out = room<Out>(l0, functions.size() * count);
  launch(l0, l0.kernel(l0.module("builtins"), kernel), groups, items, out, l0.upload<In>(x),
         l0.upload<In>(y));
  const std::vector<Out> got = l0.download(out, functions.size() * count);
  for (size_t r = 0; r < functions.size(); ++r)
    for (size_t i = 0; i < count; ++i) {
      const Out is = got[r * count + i], want = functions[r](x[i], y[i]);
      INFO("function ", r, " of ", x[i], ", ", y[i], " is ", is, "; expected ", want);
      CHECK(near(is, want, ulps[r]));
    }
}

}  // namespace

TEST_CASE(
    "OpenCL functions of floats have the errors that OpenCL allows, and only fma() is fused") {
  std::vector<float> x = random_floats(count, -9, 9), y = x;
  std::ranges::reverse(y);
  x[0] = 0;
  x[1] = std::numeric_limits<float>::infinity();
  x[2] = std::numeric_limits<float>::quiet_NaN();
  x[3] = 1e-41f;  // a subnormal
  x[4] = 2.5f;
  check_rows<float, float>(
      "floats",
      {[](float v, float) { return std::exp(v); },
       [](float v, float) { return std::expm1(v); },
       [](float v, float) { return std::log(v); },
       [](float v, float) { return std::log1p(v); },
       [](float v, float) { return std::log2(v); },
       [](float v, float) { return std::atan(v); },
       [](float v, float) { return std::sin(v); },
       [](float v, float) { return std::cos(v); },
       [](float v, float) { return std::tanh(v); },
       [](float v, float) { return std::erf(v); },
       [](float v, float) { return std::erfc(v); },
       [](float v, float) { return std::sqrt(v); },
       [](float v, float) { return std::fabs(v); },
       [](float v, float) { return std::floor(v); },
       [](float v, float) { return std::rint(v); },
       [](float v, float w) { return std::fmod(v, w); },
       [](float v, float) { return 1.0f / v; },
       [](float v, float) { return v / 3.0f; },
       [](float v, float w) { return std::pow(v, w); },
       [](float v, float w) { return std::fmin(v, w); },
       [](float v, float w) { return std::fmax(v, w); },
       [](float v, float w) { return std::fma(v, w, v); },
       [](float v, float w) { return v * w + v; },
       [](float v, float) { return std::exp(v); },
       [](float v, float w) { return std::fma(w, v, w); },
       [](float v, float) { return std::exp2(v); },
       [](float v, float) { return 1.0f / v; }},
      x, y,
      // OpenCL's table of errors; of native functions what Intel's take.
      {3, 3, 3, 2, 3, 5, 4, 4, 5, 16, 16, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 3, 0, 4, 2});
}

TEST_CASE("OpenCL classification functions equal their definitions") {
  std::vector<float> x = random_floats(count, -400, 400);
  x[0] = std::numeric_limits<float>::quiet_NaN();
  x[1] = -std::numeric_limits<float>::infinity();
  x[2] = -0.0f;
  check_rows<int, float>(
      "questions",
      {[](float v, float) { return std::isnan(v); }, [](float v, float) { return std::isinf(v); },
       [](float v, float) { return std::isfinite(v); },
       [](float, float w) { return std::bit_cast<int>(w); }},
      x, x);
}

TEST_CASE("OpenCL functions of integers equal their definitions") {
  using u = uint32_t;
  const auto wide = [](u x) { return int64_t{x} << 20; };
  const auto offset = [](u y) { return int64_t{y} - (int64_t{1} << 31); };
  std::mt19937 random(11);
  std::vector<u> x(count), y(count);
  for (u& v : x) v = static_cast<u>(random());
  for (u& v : y) v = static_cast<u>(random());
  x[0] = 0;
  y[1] = 0;
  check_rows<u, u>(
      "integers",
      {[](u a, u b) { return static_cast<u>(uint64_t{a} * b >> 32); },
       [&](u a, u b) { return static_cast<u>(std::min(wide(a), offset(b))); },
       [&](u a, u b) { return static_cast<u>(std::max(wide(a), offset(b))); },
       [&](u a, u b) { return static_cast<u>(std::clamp(offset(b), int64_t{-1000}, wide(a))); },
       [&](u a, u) { return static_cast<u>(std::countl_zero(static_cast<uint64_t>(wide(a)))); }},
      x, y);
}

TEST_CASE("kernel arguments of every size arrive, structs included") {
  LevelZero l0;
  struct alignas(16) Int4 {
    int32_t s[4];
  };
  struct alignas(64) Long8 {
    int64_t s[8];
  };
  struct Source {
    int32_t from;
    int16_t parts[3];
    float scale;
  };
  const std::vector<float> x = random_floats(count + 8, -1, 1);
  float* const out = room<float>(l0, count);
  launch(l0, l0.kernel(l0.module("builtins"), "arguments"), groups, items, out, l0.upload<float>(x),
         uint8_t{200}, int16_t{-300}, int32_t{4000}, int64_t{50000}, 0.5f, Int4{{1, 2, 3, 4}},
         Long8{{1, 2, 3, 4, 5, 6, 7, 8}}, Source{5, {0, 1, 2}, 2.0f});
  const std::vector<float> got = l0.download(out, count);
  for (size_t i = 0; i < count; ++i)
    CHECK(got[i] == 200 - 300 + 4000 + 50000 + 0.5f + 1 + 4 + 2 + 8 + x[5 + i + i % 3] * 2.0f);
}

TEST_CASE("work-items have the right indices in three dimensions") {
  LevelZero l0;
  constexpr uint32_t grid[3] = {3, 2, 4}, local[3] = {2, 5, 3};
  constexpr size_t all = 3 * 2 * 4 * 2 * 5 * 3;
  int* const out = room<int>(l0, all);
  const auto kernel = l0.kernel(l0.module("builtins"), "places");
  set_argument(kernel, 0, out);
  ZG_CHECK_ZE(zeKernelSetGroupSize(kernel, local[0], local[1], local[2]));
  const ze_group_count_t of{grid[0], grid[1], grid[2]};
  ZG_CHECK_ZE(zeCommandListAppendLaunchKernel(l0.list, kernel, &of, nullptr, 0, nullptr));
  l0.barrier();
  const std::vector<int> got = l0.download(out, all);
  for (uint32_t i = 0; i < all; ++i) {
    const uint32_t at[3] = {i % 6, i / 6 % 10, i / 60};
    int want = 1000000;
    for (int d = 2, digit = 100; d >= 0; --d, digit /= 10) {
      want += digit * static_cast<int>(at[d] / local[d]);
      want += 1000 * digit * static_cast<int>(at[d] % local[d]);
    }
    CHECK(got[i] == want);
  }
}

TEST_CASE("atomic operations of many work-items lose no update") {
  LevelZero l0;
  constexpr uint32_t many = 200, of = 64;
  std::vector<int> x(many * of);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int>(i % 1000) - 300;
  int* const counts = l0.upload<int>(std::vector<int>(2, 0));
  launch(l0, l0.kernel(l0.module("builtins"), "atomics"), many, of, counts, l0.upload<int>(x));
  int sum = 0;
  for (const int v : x) sum += v;
  CHECK(l0.download(counts, 2) == std::vector<int>{sum, sum});
}

TEST_CASE("barriers order the accesses of work-items to local memory") {
  LevelZero l0;
  constexpr uint32_t many = 70, of = 64;
  const std::vector<float> x = random_floats(many * of, -1, 1);
  float *const sums = room<float>(l0, many), *const reversed = room<float>(l0, many * of);
  launch(l0, l0.kernel(l0.module("builtins"), "tree"), many, of, sums, reversed,
         l0.upload<float>(x));
  const std::vector<float> got = l0.download(sums, many), mirror = l0.download(reversed, many * of);
  for (uint32_t g = 0; g < many; ++g) {
    std::vector<float> parts(x.begin() + g * of, x.begin() + (g + 1) * of);
    for (uint32_t l = 0; l < of; ++l) CHECK(mirror[g * of + l] == parts[of - 1 - l]);
    for (uint32_t s = of / 2; s; s /= 2) {
      for (uint32_t l = 0; l < s; ++l) parts[l] += parts[l + s];
    }
    CHECK(got[g] == parts[0]);
  }
}
