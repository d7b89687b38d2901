// Sub-group operations on the test driver, against the definitions of cl_khr_subgroups,
// cl_intel_subgroups and cl_intel_subgroup_matrix_multiply_accumulate.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "tests/hpu/level_zero.h"

using namespace zg::test;

namespace {

/// The smallest sub-group size, which determines the device's variants.
uint32_t smallest(const LevelZero& l0) {
  ze_device_compute_properties_t properties = {};
  properties.stype = ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES;
  ZG_CHECK_ZE(zeDeviceGetComputeProperties(l0.device, &properties));
  return properties.subGroupSizes[0];
}

std::vector<float> numbers(size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i * 37 % 101) / 8;
  return values;
}

}  // namespace

TEST_CASE("sub-group functions combine and exchange the values of lanes") {
  LevelZero l0;
  const uint32_t size = smallest(l0);
  const auto kernel =
      l0.kernel(l0.module(("sub_groups.sg" + std::to_string(size)).c_str()), "lanes");
  // The last sub-group of each group is full, as shuffles need.
  const uint32_t groups = 5, items = 3 * size, count = groups * items, rows = 6;
  const std::vector<float> x = numbers(count);
  float* const out = static_cast<float*>(l0.allocate(rows * count * sizeof(float)));
  launch(l0, kernel, groups, items, out, l0.upload<float>(x));
  const std::vector<float> got = l0.download(out, rows * count);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t l = i % size, first = i - l;
    const std::vector<float> mine(x.begin() + first, x.begin() + first + size);
    float sum = 0;
    for (const float v : mine) sum += v;
    const float want[rows] = {
        sum,
        mine[(l + 3) % size],
        mine[(l + 3) % size] + 1,
        mine[l ^ 5] + 1,
        static_cast<float>(i % items / size * 100 + l),  // NOLINT: the whole quotient is meant
        static_cast<float>(3 * 100 + size)};
    for (uint32_t r = 0; r < rows; ++r) {
      INFO("function ", r, " of lane ", l);
      CHECK(got[r * count + i] == want[r]);
    }
  }
}

TEST_CASE("sub-groups of a work-group may take different branches") {
  LevelZero l0;
  const uint32_t size = smallest(l0), items = 3 * size;
  const auto kernel =
      l0.kernel(l0.module(("sub_groups.sg" + std::to_string(size)).c_str()), "ways");
  const std::vector<float> x = numbers(items);
  float* const out = static_cast<float*>(l0.allocate(items * sizeof(float)));
  launch(l0, kernel, 1, items, out, l0.upload<float>(x));
  const std::vector<float> got = l0.download(out, items);
  for (uint32_t i = 0; i < items; ++i) {
    float want = 0;
    for (uint32_t k = 0; k <= i / size; ++k) {
      float sum = 0;
      for (uint32_t l = 0; l < size; ++l) sum += x[i / size * size + l] + static_cast<float>(k);
      want += sum;
    }
    CHECK(got[i] == want);
  }
}

TEST_CASE("block reads give each lane the elements that lie one sub-group apart") {
  LevelZero l0;
  const uint32_t size = smallest(l0);
  const auto kernel =
      l0.kernel(l0.module(("sub_groups.sg" + std::to_string(size)).c_str()), "blocks");
  uint32_t* const out = static_cast<uint32_t*>(l0.allocate(16 * size * sizeof(uint32_t)));
  for (const int at : {0, 3}) {
    launch(l0, kernel, 1, size, out, at);
    const std::vector<uint32_t> got = l0.download(out, 16 * size);
    const auto first = static_cast<uint32_t>(4 * at);
    for (uint32_t i = 0; i < 8; ++i)
      for (uint32_t lane = 0; lane < size; ++lane) {
        INFO("element ", i, " of lane ", lane, ", from word ", first);
        CHECK(got[i * size + lane] == (first + i * size + lane) * 0x10001);
        CHECK(got[(8 + i) * size + lane] == first + (i * size + lane) / 2);
      }
  }
}

TEST_CASE("the DPAS product of bf16 tiles equals the product of the matrices") {
  LevelZero l0;
  const uint32_t size = smallest(l0);  // also columns of the tile
  constexpr uint32_t rows = 8, depth = 16, blocks = 3;
  const auto kernel =
      l0.kernel(l0.module(("products.dpas" + std::to_string(size)).c_str()), "product");
  const auto bf16 = [](float v) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16); };
  // Small integers: bf16 represents them exactly, and every order of additions gives the same sum.
  const auto a_at = [](uint32_t m, uint32_t k) {
    return static_cast<float>((m * 5 + k * 3) % 11) - 5;
  };
  const auto b_at = [](uint32_t k, uint32_t n) {
    return static_cast<float>((k * 7 + n * 2) % 13) - 6;
  };
  std::vector<uint16_t> a(blocks * rows * depth);
  std::vector<uint32_t> b(blocks * depth / 2 * size);
  for (uint32_t k = 0; k < blocks * depth; ++k) {
    const uint32_t block = k / depth, within = k % depth;
    for (uint32_t m = 0; m < rows; ++m)
      a[block * rows * depth + m * depth + within] = bf16(a_at(m, k));
    for (uint32_t n = 0; n < size; ++n)
      b[block * depth / 2 * size + within / 2 * size + n] |= uint32_t{bf16(b_at(k, n))}
                                                             << 16 * (k % 2);
  }
  float* const c = static_cast<float*>(l0.allocate(rows * size * sizeof(float)));
  launch(l0, kernel, 1, size, c, l0.upload<uint16_t>(a), l0.upload<uint32_t>(b), int{blocks});
  const std::vector<float> got = l0.download(c, rows * size);
  for (uint32_t m = 0; m < rows; ++m) {
    for (uint32_t n = 0; n < size; ++n) {
      float want = 0;
      for (uint32_t k = 0; k < blocks * depth; ++k) want += a_at(m, k) * b_at(k, n);
      CHECK(got[m * size + n] == want);
    }
  }
}
