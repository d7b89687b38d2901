#include <algorithm>
#include <numeric>

#include "tests/support/op_case.h"
#include "zerograd/autograd/parameter.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/kernels/optimizer/square_groups.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr int64_t granule = SumOfSquares::granule;

struct Sum {
  std::vector<int64_t> limbs;
  int64_t non_finite;
  double value() const { return value_of_limbs(limbs.data()); }
};

Sum sum_of(const Tensor& x, bool each = false) {
  const Device& device = x.device();
  const SumOfSquares::Part a{.x = x,
                             .limbs = Tensor::zeros({SumOfSquares::limb_count}, DType::i64, device),
                             .non_finite = Tensor::zeros({1}, DType::i64, device),
                             .each = each};
  kernels::sum_of_squares({.parts = {a}}, device.compute());
  return {a.limbs.to_host<int64_t>(), a.non_finite.to_host<int64_t>()[0]};
}

template <class T>
Sum sum_of(const std::vector<T>& values, const Device& device) {
  return sum_of(Tensor::from(values, {static_cast<int64_t>(values.size())}, device));
}

/// One granule per value, zeros around it.
template <class T>
Sum sum_of_granules(const std::vector<T>& values, const Device& device) {
  std::vector<T> x(values.size() * granule);
  for (size_t i = 0; i < values.size(); ++i) x[i * granule + i % granule] = values[i];
  return sum_of(x, device);
}

/// From 1e-30 to 1e8, so that squares reach over more than a double's digits.
std::vector<float> wide_values(int64_t n, uint64_t seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) {
    const Philox::Block word = Philox::block({static_cast<uint32_t>(i), 0, 0, 0}, seed);
    const float size = std::ldexp(1.0f + uniform(word[0]), static_cast<int>(word[1] % 126) - 99);
    values.push_back(word[2] % 2 == 0 ? size : -size);
  }
  return values;
}

}  // namespace

TEST_CASE("a parameter's squares have the same limbs for every division into groups and shards") {
  // By rows, by columns, in three blocks of heads. 16 divides the groups' runs of the last two.
  const Slice wholes[] = {{.extent = 40, .inner = 19, .groups = 8},
                          {.outer = 37, .extent = 56, .groups = 8},
                          {.outer = 3, .extent = 24, .inner = 7, .groups = 8},
                          {.extent = 50, .inner = 3, .groups = 8},
                          {.outer = 5, .extent = 256, .groups = 8},
                          {.extent = 23, .inner = 48, .groups = 8},
                          // It divides the groups' runs, but not the blocks.
                          {.outer = 3, .extent = 15, .inner = 8, .groups = 8}};
  for (const Device& device : devices_at_every_level())
    for (Slice slice : wholes) {
      const int64_t extent = slice.extent, part = (extent + 7) / 8;
      const std::vector<float> values = wide_values(slice.whole_numel(), 13);
      std::vector<int64_t> expected;
      for (const int64_t ranks : {1, 2, 4, 8}) {
        INFO(level_of(device), ", ", slice.outer, " x ", extent, " x ", slice.inner, ", ranks ",
             ranks);
        std::vector<int64_t> limbs(SumOfSquares::limb_count);
        for (int64_t rank = 0; rank < ranks; ++rank) {
          slice.begin = std::min(extent, rank * part * 8 / ranks);
          slice.rows = std::min(extent, (rank + 1) * part * 8 / ranks) - slice.begin;
          std::vector<float> own;
          for (int64_t i = 0; i < slice.numel(); ++i)
            own.push_back(values[static_cast<size_t>(slice.whole_index(i))]);
          own.resize((own.size() + granule - 1) / granule * granule);  // as in a flat unit
          const auto n = static_cast<int64_t>(own.size());
          const Tensor x = Tensor::from(own, {n}, device);
          // Two shards of ZeRO.
          for (const auto& [begin, end] :
               {std::pair(int64_t{0}, n / 48 * granule), {n / 48 * granule, n}}) {
            const Sum sum = sum_of(x.flat(begin, end - begin), !slice.keeps_granules(granule));
            for (size_t i = 0; i < limbs.size(); ++i) limbs[i] += sum.limbs[i];
          }
        }
        if (ranks == 1) expected = limbs;
        CHECK(limbs == expected);
      }
    }
}

TEST_SUITE_BEGIN("every device");

TEST_CASE("sum_of_squares is near the sum in long double, for every dtype and level") {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device({DType::f64, DType::f32, DType::bf16, DType::f16}, device))
      for (int64_t granules : {1, 3, 257, 10001}) {
        INFO(level_of(device), ", ", name_of(dtype), ", granules ", granules);
        const Tensor x = random_tensor({granules * granule}, dtype, device, 5);
        long double expected = 0.0L;
        for (double v : x.to_doubles()) expected += static_cast<long double>(v) * v;
        const Sum sum = sum_of(x);
        // Five roundings of the positive sums in a granule and the last one; long double's own are
        // 2048 times smaller.
        CHECK(std::fabs(sum.value() - static_cast<double>(expected)) <=
              (6 + 0x1p-11 * static_cast<double>(granules)) * 0x1p-53 * sum.value());
        CHECK(sum.non_finite == 0);
      }
}

TEST_CASE("sum_of_squares has the same limbs for any order, split, level and thread count") {
  constexpr int64_t granules = 9001;
  const std::vector<float> values = wide_values(granules * granule, 11);
  const Sum expected = sum_of(values, Device::cpu(0, {.threads = 1, .isa = Isa::portable}));
  for (const Device& device : devices_at_every_level(2)) {
    CAPTURE(level_of(device));
    CHECK(sum_of(values, device).limbs == expected.limbs);

    std::vector<int64_t> order(granules);
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size() - 1; i > 0; --i)
      std::swap(order[i],
                order[Philox::block({static_cast<uint32_t>(i), 1, 0, 0}, 3)[0] % (i + 1)]);
    std::vector<float> permuted;
    for (int64_t g : order)
      permuted.insert(permuted.end(), values.begin() + g * granule,
                      values.begin() + (g + 1) * granule);
    CHECK(sum_of(permuted, device).limbs == expected.limbs);

    for (uint32_t shards : {2u, 3u, 17u}) {
      std::vector<int64_t> cuts = {0, granules};
      for (uint32_t i = 1; i < shards; ++i)
        cuts.push_back(Philox::block({i, shards, 0, 0}, 4)[0] % granules);
      std::ranges::sort(cuts);
      std::vector<int64_t> merged(SumOfSquares::limb_count);
      const Tensor x = Tensor::from(values, {granules * granule}, device);
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const Sum shard = sum_of(x.flat(cuts[i] * granule, (cuts[i + 1] - cuts[i]) * granule));
        for (size_t limb = 0; limb < merged.size(); ++limb) merged[limb] += shard.limbs[limb];
      }
      CHECK(merged == expected.limbs);
      CHECK(value_of_limbs(merged.data()) == expected.value());
    }
  }
}

TEST_CASE("sum_of_squares adds the elements of a granule in the documented order") {
  // 2^54 + 1 rounds back to 2^54, so each level of the tree can be seen to lose its ones or not.
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    const auto value = [&](std::initializer_list<int> ones) {
      std::vector<float> x(granule);
      x[0] = 0x1p27f;
      for (int i : ones) x[static_cast<size_t>(i)] = 1.0f;
      return sum_of(x, device).value() - 0x1p54;
    };
    CHECK(value({8, 4, 2, 1}) == 0.0);                // each is added alone
    CHECK(value({8, 1, 3, 5, 7, 9, 11, 13}) == 8.0);  // seven join first: 7 rounds to 8
    CHECK(value({4, 12}) == 0.0);                     // 2 is half of the last digit: to even
    CHECK(value({2, 6, 10, 14}) == 4.0);
  }
}

TEST_CASE("sum_of_squares is exact from the smallest square of an f32 to the largest") {
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    CHECK(sum_of_granules(std::vector<float>{0x1p-149f}, device).value() == 0x1p-298);
    const float largest = std::numeric_limits<float>::max();
    CHECK(sum_of_granules(std::vector<float>(1000, largest), device).value() ==
          1000.0 * (double{largest} * double{largest}));
    // 2^54 + 2 lies between two doubles, 4 apart, and the even one wins; anything more tips it.
    const std::vector<float> tie = {0x1p27f, 1.0f, 1.0f};
    CHECK(sum_of_granules(tie, device).value() == 0x1p54);
    for (float more : {1.0f, 0x1p-20f, 0x1p-149f}) {
      std::vector<float> tipped = tie;
      tipped.push_back(more);
      CHECK(sum_of_granules(tipped, device).value() == 0x1p54 + 4.0);
    }
    // Between 2^54 + 4 and 2^54 + 8 the even one is above.
    CHECK(sum_of_granules(std::vector<float>{0x1p27f, 2.0f, 1.0f, 1.0f}, device).value() ==
          0x1p54 + 8.0);
    CHECK(sum_of_granules(std::vector<float>(64), device).value() == 0.0);
  }
}

TEST_CASE("sum_of_squares gives the same limbs for a view at any offset") {
  constexpr int64_t n = 300 * granule;
  const Device plain = Device::cpu(0, {.threads = 1, .isa = Isa::portable});
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device({DType::f32, DType::bf16, DType::f16}, device)) {
      INFO(level_of(device), ", ", name_of(dtype));
      for (int64_t begin : {0, 1, 2, 4, 8}) {
        const Shape shape = {begin + n};
        const Sum expected = sum_of(random_tensor(shape, dtype, plain, 12).flat(begin, n));
        const Sum sum = sum_of(random_tensor(shape, dtype, device, 12).flat(begin, n));
        CHECK(sum.limbs == expected.limbs);
        CHECK(sum.non_finite == 0);
      }
    }
}

TEST_CASE("sum_of_squares gives each of many parts the limbs that it has alone") {
  constexpr int64_t parts = 230, limb_count = SumOfSquares::limb_count;  // parts: over one launch
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    const Tensor limbs = Tensor::zeros({parts * limb_count}, DType::i64, device);
    const Tensor non_finite = Tensor::zeros({parts}, DType::i64, device);
    SumOfSquares all;
    std::vector<Sum> expected;
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t n = i % 9 == 0 ? 0 : granule * (1 + i * i % 400);
      std::vector<float> values = random_tensor({n}, DType::f32, device, 1).to_host<float>();
      if (n > 0 && i % 10 == 1) values[static_cast<size_t>(n / 2)] = INFINITY;
      const int64_t begin = i == parts - 1 ? 1 : 0;
      values.insert(values.begin(), static_cast<size_t>(begin), 7.0f);
      const Tensor x = Tensor::from(values, {begin + n}, device).flat(begin, n);
      const bool each = i % 7 == 3;
      expected.push_back(sum_of(x, each));
      all.parts.push_back({.x = x,
                           .limbs = limbs.flat(i * limb_count, limb_count),
                           .non_finite = non_finite.flat(i, 1),
                           .each = each});
    }
    kernels::sum_of_squares(all, device.compute());
    const std::vector<int64_t> sums = limbs.to_host<int64_t>();
    const std::vector<int64_t> counts = non_finite.to_host<int64_t>();
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      const auto begin = sums.begin() + static_cast<std::ptrdiff_t>(i) * limb_count;
      CHECK(std::vector<int64_t>(begin, begin + limb_count) == expected[i].limbs);
      CHECK(counts[i] == expected[i].non_finite);
    }
  }
}

TEST_SUITE_END();

TEST_CASE("value_of_limbs carries from full limbs into higher ones") {
  std::vector<int64_t> limbs(SumOfSquares::limb_count);
  limbs[20] = int64_t{1} << 62;  // in units of 2^(26 * 20 - 520) = 1
  limbs[19] = (int64_t{1} << 62) + 1;
  CHECK(value_of_limbs(limbs.data()) == 0x1p62 + 0x1p36);
  std::ranges::fill(limbs, 0);
  limbs[39] = std::numeric_limits<int64_t>::max();
  CHECK(value_of_limbs(limbs.data()) == 0x1p557);  // 2^63 units of 2^494
  limbs[39] = 0;
  limbs[0] = 3;
  CHECK(value_of_limbs(limbs.data()) == 3 * 0x1p-520);
}

TEST_CASE("sum_of_squares counts non-finite elements and sums the granules without them" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    std::vector<float> x(3 * granule, 1.0f);
    x[17] = INFINITY;
    x[20] = -INFINITY;
    x[31] = NAN;
    const Sum sum = sum_of(x, device);
    CHECK(sum.non_finite == 3);
    CHECK(sum.value() == 32.0);
  }
}

TEST_CASE("sum_of_squares of f64 clamps above 2^520 and drops below 2^-520") {
  const Device device = Device::cpu();
  const double largest = 0x1.fffffffffffffp519;
  CHECK(sum_of_granules(std::vector<double>{0x1p260}, device).value() == largest);
  CHECK(sum_of_granules(std::vector<double>{0x1p259, 0x1p-260}, device).value() == 0x1p518);
  const Sum overflow = sum_of_granules(std::vector<double>{1e300}, device);
  CHECK(overflow.value() == largest);
  CHECK(overflow.non_finite == 0);
  CHECK(sum_of_granules(std::vector<double>{0x1p-260}, device).value() == 0x1p-520);
  CHECK(sum_of_granules(std::vector<double>{0x1.8p-260}, device).value() == 0x1p-519);
  CHECK(sum_of_granules(std::vector<double>{0x1p-261, 1e-300}, device).value() == 0.0);
  CHECK(sum_of_granules(std::vector<double>{INFINITY, 1.0}, device).non_finite == 1);
}

TEST_CASE("sum_of_squares adds to the limbs that it is given, from all parts that share them" *
          doctest::test_suite("every device")) {
  constexpr int64_t given = 0xffffffff;  // a carry of 32 bits for every limb that grows
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    const Tensor x = random_tensor({granule * 700}, DType::f32, device, 5);
    const SumOfSquares::Part a{
        .x = x,
        .limbs = Tensor::full({SumOfSquares::limb_count}, static_cast<double>(given), DType::i64,
                              device),
        .non_finite = Tensor::full({1}, 5, DType::i64, device)};
    kernels::sum_of_squares({.parts = std::vector(20, a)}, device.compute());
    std::vector<int64_t> expected = sum_of(x).limbs;
    for (int64_t& limb : expected) limb = given + 20 * limb;
    CHECK(a.limbs.to_host<int64_t>() == expected);
    CHECK(a.non_finite.item() == 5.0);
  }
}

TEST_CASE("sum_of_squares refuses tensors of wrong shape or dtype") {
  const Device device = Device::meta();
  const SumOfSquares::Part a{.x = Tensor::empty({32}, DType::f32, device),
                             .limbs = Tensor::empty({SumOfSquares::limb_count}, DType::i64, device),
                             .non_finite = Tensor::empty({1}, DType::i64, device)};
  CHECK_NOTHROW(kernels::sum_of_squares({.parts = {a}}, device.compute()));
  auto refused = [&](auto change) {
    SumOfSquares::Part changed = a;
    change(changed);
    kernels::sum_of_squares({.parts = {a, changed}}, device.compute());
  };
  CHECK_THROWS_WITH_AS(
      refused([](auto& b) { b.x = b.x.flat(0, 31); }),
      "sum_of_squares: x has 31 elements; expected a multiple of 16, pad with zeros", ShapeError);
  CHECK_THROWS_WITH_AS(refused([](auto& b) { b.limbs = b.limbs.flat(0, 39); }),
                       "sum_of_squares: limbs has shape [39]; expected [40]", ShapeError);
  CHECK_THROWS_WITH_AS(refused([](auto& b) { b.x = b.limbs; }),
                       "sum_of_squares: x holds i64; expected f64 or f32 or bf16 or f16",
                       DTypeError);
  CHECK_THROWS_WITH_AS(
      refused([&](auto& b) { b.non_finite = Tensor::empty({1}, DType::i32, device); }),
      "sum_of_squares: non_finite holds i32; expected i64", DTypeError);
}

TEST_CASE("a work-group of hpu has no more granules than its counters hold") {
  // 13 bits of a digit in 32: 2^19 of them.
  for (int64_t numel = granule; numel <= int64_t{1} << 50; numel *= 4) {
    CAPTURE(numel);
    const int64_t granules = numel / granule, groups = hpu::square_groups(granules);
    CHECK((granules + groups - 1) / groups <= int64_t{1} << 19);
  }
}
