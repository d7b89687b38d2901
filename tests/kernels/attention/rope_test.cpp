#include "zerograd/kernels/attention/rope.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "tests/support/op_case.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct Turned {
  int64_t B, T, H, D, R;
};

/// The definition, in double: pairs (i, i + R / 2) of a head turn by position * frequency.
std::vector<double> turned_values(const Turned& s, const std::vector<double>& x,
                                  const std::vector<int32_t>& positions,
                                  const std::vector<float>& frequencies, double direction) {
  std::vector<double> y = x;
  for (int64_t n = 0; n < s.B * s.T; ++n)
    for (int64_t h = 0; h < s.H; ++h)
      for (int64_t i = 0; i < s.R / 2; ++i) {
        const float angle = static_cast<float>(positions[static_cast<size_t>(n)]) *
                            frequencies[static_cast<size_t>(i)];
        const double c = std::cos(double{angle}), sine = direction * std::sin(double{angle});
        const auto first = static_cast<size_t>((n * s.H + h) * s.D + i);
        const size_t second = first + static_cast<size_t>(s.R / 2);
        y[first] = x[first] * c - x[second] * sine;
        y[second] = x[second] * c + x[first] * sine;
      }
  return y;
}

}  // namespace

TEST_CASE("rope rotates each head's pairs by its token's position, and backward rotates them back" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device))
      for (const Turned& s : {Turned{1, 1, 1, 2, 2},
                              {2, 5, 3, 7, 4},
                              {1, 33, 5, 40, 40},
                              {2, 3, 2, 64, 32},
                              {1, 31, 2, 128, 128}}) {
        INFO(level_of(device), ", ", name_of(dtype), ", D ", s.D);
        std::vector<int32_t> positions;
        for (int64_t n = 0; n < s.B * s.T; ++n)
          positions.push_back(static_cast<int32_t>((n * 7 + 3) % 50));
        const Tensor table = rope_table({}, s.R, 50, accumulator(dtype), device);
        const Tensor x = random_tensor({s.B, s.T, s.H * s.D}, dtype, device, 1);
        const Tensor rows = Tensor::from(positions, {s.B, s.T}, device);
        const std::vector<float> frequencies = rope_frequencies({}, s.R);
        for (bool backward : {false, true}) {
          const Tensor y = Tensor::empty(x.shape(), dtype, device);
          Rope args{.x = x,
                    .y = y,
                    .table = table,
                    .positions = rows,
                    .heads = s.H,
                    .backward = backward};
          kernels::rope(args, device.compute());
          const std::vector<double> expected =
              turned_values(s, x.to_doubles(), positions, frequencies, backward ? -1.0 : 1.0);
          const std::vector<double> got = y.to_doubles();
          // |x| <= 1: two products, their sum, a rounded cosine and sine, and the result's
          // rounding.
          const double bound = 6.0 * unit_roundoff(accumulator(dtype)) + 1.5 * unit_roundoff(dtype);
          for (size_t i = 0; i < got.size(); ++i) {
            CAPTURE(i);
            REQUIRE(std::fabs(got[i] - expected[i]) <= bound);
          }
          const Tensor in_place = random_tensor({s.B, s.T, s.H * s.D}, dtype, device, 1);
          args.x = args.y = in_place;
          kernels::rope(args, device.compute());
          CHECK(same_bits(in_place, y));
        }
      }
}

TEST_CASE("rope without positions counts from the first position" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level()) {
    const Tensor table = rope_table({}, 4, 12, DType::f32, device);
    const Tensor x = random_tensor({2, 5, 12}, DType::f32, device, 1);
    const Tensor counted = Tensor::empty(x.shape(), DType::f32, device);
    const Tensor listed = Tensor::empty(x.shape(), DType::f32, device);
    kernels::rope({.x = x, .y = counted, .table = table, .heads = 2, .first_position = 7},
                  device.compute());
    const std::vector<int32_t> rows = {7, 8, 9, 10, 11, 7, 8, 9, 10, 11};
    kernels::rope({.x = x,
                   .y = listed,
                   .table = table,
                   .positions = Tensor::from(rows, {2, 5}, device),
                   .heads = 2},
                  device.compute());
    CHECK(same_bits(counted, listed));
  }
}

TEST_CASE("rope's error for a position outside the table names the position" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level()) {
    const Tensor x = Tensor::full({1, 3, 4}, 1.0, DType::f32, device);
    const Rope args{.x = x,
                    .y = x,
                    .table = rope_table({}, 4, 8, DType::f32, device),
                    .positions = Tensor::from(std::vector<int32_t>{0, 8, 1}, {1, 3}, device),
                    .heads = 1};
    const auto run = [&] {
      kernels::rope(args, device.compute());
      device.compute().synchronize();
    };
    CHECK_THROWS_WITH_AS(run(), "rope: positions[1] is 8; expected 0 to 7", ShapeError);
  }
}

TEST_CASE("rope's frequencies follow Llama 3.1's and YaRN's rules") {
  // transformers 4.57, ROPE_INIT_FUNCTIONS["llama3"]: theta 500000, factor 8, factors 1 and 4,
  // 8192.
  const RopeOptions llama{
      .theta = 500000.0, .scaling = RopeScaling::llama3, .factor = 8.0, .original_positions = 8192};
  const std::vector<float> plain = rope_frequencies({.theta = 500000.0}, 128);
  const std::vector<float> scaled = rope_frequencies(llama, 128);
  CHECK(plain[0] == 1.0f);
  int kept = 0, divided = 0, between = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double length = 2.0 * std::numbers::pi / double{plain[i]};
    if (length < 8192.0 / 4.0) {
      CHECK(scaled[i] == plain[i]);
      ++kept;
    } else if (length > 8192.0) {
      CHECK(scaled[i] == plain[i] / 8.0f);
      ++divided;
    } else {
      CHECK(scaled[i] < plain[i]);
      CHECK(scaled[i] > plain[i] / 8.0f);
      ++between;
    }
  }
  CHECK(kept == 29);
  CHECK(divided == 29);
  CHECK(between == 6);

  const RopeOptions yarn{
      .theta = 10000.0, .scaling = RopeScaling::yarn, .factor = 4.0, .original_positions = 2048};
  const std::vector<float> base = rope_frequencies({}, 64), stretched = rope_frequencies(yarn, 64);
  CHECK(stretched.front() == base.front());
  CHECK(stretched.back() == base.back() / 4.0f);
  const std::vector<float> row =
      rope_table(yarn, 64, 1, DType::f32, Device::cpu()).to_host<float>();
  CHECK(row[0] == static_cast<float>(0.1 * std::log(4.0) + 1.0));
  CHECK(row[32] == 0.0f);
}

TEST_CASE("longrope has factors for texts of the first training's length, others for longer ones") {
  const RopeOptions options{.scaling = RopeScaling::longrope,
                            .factor = 4.0,
                            .original_positions = 8,
                            .short_factors = {1.0, 1.25, 1.5},
                            .long_factors = {1.0, 2.5, 7.0}};
  // transformers 5.24, ROPE_INIT_FUNCTIONS["longrope"], with seq_len 8 and 9.
  const std::vector<float> within = {1.0f, 0x1.3030eep-5f, 0x1.7883c2p-10f},
                           beyond = {1.0f, 0x1.3030eep-6f, 0x1.42ba14p-12f};
  CHECK(rope_frequencies(options, 6, 8) == within);
  CHECK(rope_frequencies(options, 6, 9) == beyond);
  for (const int64_t positions : {8, 9}) {
    const std::vector<float> table =
        rope_table(options, 6, positions, DType::f32, Device::cpu()).to_host<float>();
    CHECK(table[0] == 0x1.4a7e9cp+0f);  // of position 0; that of position 1 shows the frequency
    const float angle = positions == 8 ? within[2] : beyond[2];
    CHECK(table[6 + 5] == static_cast<float>(std::sin(double{angle})) * 0x1.4a7e9cp+0f);
    const Tensor end = rope_table(options, 6, positions, DType::f32, Device::cpu(), 7);
    CHECK(end.to_host<float>() == std::vector<float>(table.begin() + 7 * 6, table.end()));
  }
  CHECK_THROWS_WITH_AS(rope_table(options, 6, 8, DType::f32, Device::cpu(), 8),
                       "rope_table: first is 8; expected 0 to 7", ShapeError);
  CHECK_THROWS_WITH_AS(rope_frequencies(options, 8, 9),
                       "rope: long_factors: expected 4 numbers, one for each pair of the 8 rotated "
                       "elements of a head, got 3",
                       ConfigError);
  CHECK_THROWS_WITH_AS(
      validate({.scaling = RopeScaling::longrope, .factor = 4.0, .original_positions = 1}),
      "rope: original_positions: longrope divides by its logarithm; expected 2 or more, got 1",
      ConfigError);
}

TEST_CASE("rope refuses invalid heads, tables, positions and options") {
  const Device device = Device::meta();
  const Tensor x = Tensor::empty({2, 5, 12}, DType::bf16, device);
  const Tensor table = Tensor::empty({8, 4}, DType::f32, device);
  CHECK_THROWS_WITH_AS(
      kernels::rope({.x = x, .y = x, .table = table, .heads = 5}, device.compute()),
      "rope: heads is 5; expected a divisor of x's last axis 12", ShapeError);
  CHECK_THROWS_WITH_AS(
      kernels::rope({.x = x, .y = x, .table = table, .heads = 6}, device.compute()),
      "rope: table has shape [8, 4]; expected [positions, R] with R even and at most the head size "
      "2",
      ShapeError);
  for (const int64_t first : {int64_t{4}, INT64_MAX})
    CHECK_THROWS_WITH_AS(
        kernels::rope({.x = x, .y = x, .table = table, .heads = 2, .first_position = first},
                      device.compute()),
        ("rope: 5 positions from " + std::to_string(first) + " are needed; expected 0 to 7")
            .c_str(),
        ShapeError);
  CHECK_THROWS_WITH_AS(rope_frequencies({}, 5),
                       "rope: expected an even number of rotated elements from 2 on, got 5",
                       ConfigError);
  CHECK_THROWS_WITH_AS(rope_frequencies({.theta = 0.5}, 4),
                       "rope: theta: expected a number above 1, got 0.5", ConfigError);
  for (double RopeOptions::*field :
       {&RopeOptions::theta, &RopeOptions::factor, &RopeOptions::low_freq_factor,
        &RopeOptions::high_freq_factor, &RopeOptions::beta_fast, &RopeOptions::beta_slow,
        &RopeOptions::attention_factor})
    for (const double value : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      RopeOptions options;
      options.*field = value;
      CHECK_THROWS_AS(validate(options), ConfigError);
    }
}
