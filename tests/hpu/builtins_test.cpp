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

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

TEST_CASE("OpenCL functions of one float equal those of the host's math library") {
  LevelZero l0;
  const std::vector<std::function<float(float)>> functions{
      [](float v) { return std::exp(v); },   [](float v) { return std::exp2(v); },
      [](float v) { return std::expm1(v); }, [](float v) { return std::log(v); },
      [](float v) { return std::log2(v); },  [](float v) { return std::log1p(v); },
      [](float v) { return std::sin(v); },   [](float v) { return std::cos(v); },
      [](float v) { return std::tanh(v); },  [](float v) { return std::erf(v); },
      [](float v) { return std::sqrt(v); },  [](float v) { return 1.0f / std::sqrt(v); },
      [](float v) { return std::fabs(v); },  [](float v) { return std::floor(v); },
      [](float v) { return std::ceil(v); },  [](float v) { return std::trunc(v); },
      [](float v) { return std::round(v); }, [](float v) { return std::rint(v); },
      [](float v) { return 1.0f / v; },      [](float v) { return v / 3.0f; },
  };
  std::vector<float> x = random_floats(count, -9, 9);
  x[0] = 0;
  x[1] = std::numeric_limits<float>::infinity();
  x[2] = std::numeric_limits<float>::quiet_NaN();
  x[3] = 1e-41f;  // a subnormal
  x[4] = 2.5f;
  float* const out = room<float>(l0, functions.size() * count);
  launch(l0, l0.kernel(l0.module("builtins"), "unary"), groups, items, out, l0.upload<float>(x));
  const std::vector<float> got = l0.download(out, functions.size() * count);
  for (size_t r = 0; r < functions.size(); ++r) {
    for (size_t i = 0; i < count; ++i) {
      INFO("function ", r, " of ", x[i]);
      CHECK(same(got[r * count + i], functions[r](x[i])));
    }
  }
}

TEST_CASE("OpenCL functions of two floats equal the host's, and only fma() is fused") {
  LevelZero l0;
  const std::vector<std::function<float(float, float)>> functions{
      [](float x, float y) { return std::pow(x, y); },
      [](float x, float y) { return std::fmin(x, y); },
      [](float x, float y) { return std::fmax(x, y); },
      [](float x, float y) { return std::fmod(x, y); },
      [](float x, float y) { return std::copysign(x, y); },
      [](float x, float y) { return std::fma(x, y, x); },
      [](float x, float y) { return x * y + x; },
      [](float x, float) { return std::clamp(x, -1.0f, 1.0f); },
      [](float x, float y) { return x * y + x; },
  };
  const std::vector<float> x = random_floats(count, -3, 3);
  std::vector<float> y = x;
  std::ranges::reverse(y);
  float* const out = room<float>(l0, functions.size() * count);
  launch(l0, l0.kernel(l0.module("builtins"), "binary"), groups, items, out, l0.upload<float>(x),
         l0.upload<float>(y));
  const std::vector<float> got = l0.download(out, functions.size() * count);
  for (size_t r = 0; r < functions.size(); ++r) {
    for (size_t i = 0; i < count; ++i) {
      INFO("function ", r, " of ", x[i], ", ", y[i]);
      CHECK(same(got[r * count + i], functions[r](x[i], y[i])));
    }
  }
}

TEST_CASE("OpenCL classification, conversion and selection functions equal their definitions") {
  LevelZero l0;
  const std::vector<std::function<int(float)>> functions{
      [](float v) { return std::isnan(v); },
      [](float v) { return std::isinf(v); },
      [](float v) { return std::isfinite(v); },
      [](float v) { return std::signbit(v); },
      [](float v) { return static_cast<int>(std::fmin(std::fmax(v, -100.0f), 100.0f)); },
      [](float v) { return static_cast<int>(std::rint(std::fmin(std::fmax(v, -100.0f), 100.0f))); },
      [](float v) { return std::isnan(v) ? 0 : static_cast<int>(std::clamp(v, 0.0f, 255.0f)); },
      [](float v) { return std::bit_cast<int>(v); },
      [](float v) { return v > 0 ? 2 : 1; },
  };
  std::vector<float> x = random_floats(count, -400, 400);
  x[0] = std::numeric_limits<float>::quiet_NaN();
  x[1] = -std::numeric_limits<float>::infinity();
  x[2] = -0.0f;
  x[3] = 3.5f;
  int* const out = room<int>(l0, functions.size() * count);
  launch(l0, l0.kernel(l0.module("builtins"), "questions"), groups, items, out,
         l0.upload<float>(x));
  const std::vector<int> got = l0.download(out, functions.size() * count);
  for (size_t r = 0; r < functions.size(); ++r) {
    for (size_t i = 0; i < count; ++i) {
      INFO("function ", r, " of ", x[i]);
      CHECK(got[r * count + i] == functions[r](x[i]));
    }
  }
}

TEST_CASE("OpenCL functions of integers equal their definitions") {
  LevelZero l0;
  using u = uint32_t;
  const std::vector<std::function<u(u, u)>> functions{
      [](u x, u y) { return static_cast<u>(uint64_t{x} * y >> 32); },
      [](u x, u) { return static_cast<u>(std::popcount(x)); },
      [](u x, u) { return static_cast<u>(std::countl_zero(x)); },
      [](u x, u y) { return std::rotl(x, static_cast<int>(y % 32)); },
      [](u x, u y) { return std::min(x, y); },
      [](u x, u y) { return std::max(x, y); },
      [](u x, u y) { return static_cast<u>(std::min(static_cast<int>(x), static_cast<int>(y))); },
      [](u x, u) { return static_cast<int>(x) < 0 ? 0 - x : x; },
      [](u x, u y) {
        return static_cast<u>(int64_t{static_cast<int>(x)} * static_cast<int>(y) >> 32);
      },
      [](u x, u y) {
        const auto a = uint64_t{x} << 32 | y, b = uint64_t{y} << 32 | x;
        return static_cast<u>(static_cast<unsigned __int128>(a) * b >> 96);
      },
  };
  std::mt19937 random(11);
  std::vector<u> x(count), y(count);
  for (u& v : x) v = static_cast<u>(random());
  for (u& v : y) v = static_cast<u>(random());
  x[0] = 0;
  y[1] = 0;
  u* const out = room<u>(l0, functions.size() * count);
  launch(l0, l0.kernel(l0.module("builtins"), "integers"), groups, items, out, l0.upload<u>(x),
         l0.upload<u>(y));
  const std::vector<u> got = l0.download(out, functions.size() * count);
  for (size_t r = 0; r < functions.size(); ++r) {
    for (size_t i = 0; i < count; ++i) {
      INFO("function ", r, " of ", x[i], ", ", y[i]);
      CHECK(got[r * count + i] == functions[r](x[i], y[i]));
    }
  }
}

TEST_CASE("vectors pass through global and local memory") {
  LevelZero l0;
  constexpr size_t width = 8;
  const std::vector<float> x = random_floats(count * width, -1, 1);
  std::vector<uint16_t> h(x.size());
  for (size_t i = 0; i < h.size(); ++i) h[i] = static_cast<uint16_t>(i);
  float* const out = room<float>(l0, x.size());
  launch(l0, l0.kernel(l0.module("builtins"), "vectors"), groups, items, out, l0.upload<float>(x),
         l0.upload<uint16_t>(h), LocalBytes{items * width * sizeof(float)});
  const std::vector<float> got = l0.download(out, x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t item = i / width, group = item / items;
    const size_t other = group * items + (items - 1 - item % items);
    const float w = std::fma(x[other * width + i % width], 2.0f, static_cast<float>(h[i]));
    CHECK(got[i] == std::fabs(w) + std::fmax(x[i], 0.0f));
  }
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
  int* const counts = l0.upload<int>(std::vector<int>(6, 0));
  launch(l0, l0.kernel(l0.module("builtins"), "atomics"), many, of, counts, l0.upload<int>(x));
  int sum = 0;
  for (const int v : x) sum += v;
  CHECK(l0.download(counts, 6) ==
        std::vector<int>{sum, static_cast<int>(many * of), 699, -300, 255, sum});
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
