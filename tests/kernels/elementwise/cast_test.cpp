#include <cmath>
#include <limits>

#include "tests/support/op_case.h"
#include "zerograd/kernels/elementwise/elementwise.h"

using namespace zg;
using namespace zg::testing;

// Between floating types: elementwise_test.cpp.

TEST_SUITE_BEGIN("every device");

TEST_CASE("cast to integers truncates, saturates and turns NaN into 0") {
  for (const Device& device : devices_at_every_level()) {
    const Tensor x = Tensor::from<float>(
        {1.9f, -1.9f, 3e9f, -3e9f, std::numeric_limits<float>::quiet_NaN(), 0.5f, 1e19f, -1e19f},
        {8}, device);
    auto to = [&](DType dtype) {
      const Tensor y = Tensor::empty({8}, dtype, device);
      kernels::cast({.x = x, .y = y}, device.compute());
      return y.to_doubles();
    };
    constexpr double most = 2147483647, least = -2147483648.0;
    CHECK(to(DType::i32) == std::vector<double>{1, -1, most, least, 0, 0, most, least});
    CHECK(to(DType::i64) == std::vector<double>{1, -1, 3e9, -3e9, 0, 0, 0x1p63, -0x1p63});
    CHECK(to(DType::u8) == std::vector<double>{1, 0, 255, 0, 0, 0, 255, 0});
    CHECK(to(DType::boolean) == std::vector<double>{1, 1, 1, 1, 1, 1, 1, 1});
  }
}

TEST_CASE("cast to integers saturates from the first value that does not fit") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr int32_t most32 = std::numeric_limits<int32_t>::max(), least32 = -most32 - 1;
  constexpr int64_t most64 = std::numeric_limits<int64_t>::max(), least64 = -most64 - 1;
  const std::vector<double> values = {0x1p31,  -0x1p31, 0x1p30,  -0x1p30,  0x1p63,
                                      -0x1p63, 0x1p62,  -0x1p62, infinity, -infinity,
                                      256,     255,     254,     -0.5,     -1};
  for (const Device& device : devices_at_every_level())
    for (DType from : on_device({DType::f64, DType::f32, DType::bf16}, device)) {
      CAPTURE(name_of(from));
      const auto count = static_cast<int64_t>(values.size());
      const Tensor wide = Tensor::from<float>({values.begin(), values.end()}, {count}, device);
      const Tensor x = Tensor::empty({count}, from, device);
      kernels::cast({.x = wide, .y = x}, device.compute());
      const auto to = [&](DType dtype) {
        const Tensor y = Tensor::empty({count}, dtype, device);
        kernels::cast({.x = x, .y = y}, device.compute());
        return y;
      };
      CHECK(to(DType::i32).to_host<int32_t>() ==
            std::vector<int32_t>{most32, least32, 1 << 30, -(1 << 30), most32, least32, most32,
                                 least32, most32, least32, 256, 255, 254, 0, -1});
      CHECK(to(DType::i64).to_host<int64_t>() ==
            std::vector<int64_t>{int64_t{1} << 31, -(int64_t{1} << 31), 1 << 30, -(1 << 30), most64,
                                 least64, int64_t{1} << 62, -(int64_t{1} << 62), most64, least64,
                                 256, 255, 254, 0, -1});
      CHECK(to(DType::u8).to_host<uint8_t>() ==
            std::vector<uint8_t>{255, 0, 255, 0, 255, 0, 255, 0, 255, 0, 255, 255, 254, 0, 0});
    }
}

TEST_CASE("cast to bf16 keeps a NaN of any bits a NaN") {
  for (const Device& device : devices_at_every_level()) {
    const Tensor bits =
        Tensor::from<int32_t>({0x7fffffff, -1, 0x7f800001, 0x7fc00000}, {4}, device);
    const Tensor y = Tensor::empty({4}, DType::bf16, device);
    kernels::cast({.x = bits.alias(0, {4}, DType::f32), .y = y}, device.compute());
    for (const double value : y.to_doubles()) CHECK(std::isnan(value));
  }
}

TEST_CASE("cast of integers to floats rounds to nearest even") {
  const Device device = devices_at_every_level().back();
  const Tensor x = Tensor::from<int64_t>(
      {(1 << 24) + 1, (1 << 24) + 3, -((1 << 24) + 1), 257, 259, (int64_t{1} << 40) + (1 << 16)},
      {6}, device);
  const auto to = [&](DType dtype) {
    const Tensor y = Tensor::empty({6}, dtype, device);
    kernels::cast({.x = x, .y = y}, device.compute());
    return y.to_doubles();
  };
  CHECK(to(DType::f32) == std::vector<double>{0x1p24, 0x1p24 + 4, -0x1p24, 257, 259, 0x1p40});
  CHECK(to(DType::bf16) == std::vector<double>{0x1p24, 0x1p24, -0x1p24, 256, 260, 0x1p40});
}

TEST_CASE("cast between integers wraps around") {
  const Device device = devices_at_every_level().back();
  const Tensor x = Tensor::from<int64_t>({-1, 300, (int64_t{1} << 32) + 7}, {3}, device);
  auto to = [&](DType dtype) {
    const Tensor y = Tensor::empty({3}, dtype, device);
    kernels::cast({.x = x, .y = y}, device.compute());
    return y.to_doubles();
  };
  CHECK(to(DType::i32) == std::vector<double>{-1, 300, 7});
  CHECK(to(DType::u8) == std::vector<double>{255, 44, 7});
  CHECK(to(DType::boolean) == std::vector<double>{1, 1, 1});
}

TEST_CASE("cast between integers and booleans keeps values that fit") {
  const Device device = devices_at_every_level().back();
  const std::vector<DType> types =
      on_device({DType::i32, DType::i64, DType::u8, DType::f32, DType::bf16, DType::f64}, device);
  for (DType from : types)
    for (DType to : types) {
      INFO(name_of(from), ", ", name_of(to));
      const Tensor x = Tensor::full({3}, 97, from, device);
      const Tensor y = Tensor::empty({3}, to, device);
      kernels::cast({.x = x, .y = y}, device.compute());
      CHECK(y.to_doubles() == std::vector<double>{97, 97, 97});
    }
  const Tensor flags = Tensor::from<uint8_t>({0, 1}, {2}, device);
  const Tensor x = flags.alias(0, {2}, DType::boolean);
  for (DType to : types) {
    const Tensor y = Tensor::empty({2}, to, device);
    kernels::cast({.x = x, .y = y}, device.compute());
    CHECK(y.to_doubles() == std::vector<double>{0, 1});
    const Tensor back = Tensor::full({2}, 5, DType::u8, device).alias(0, {2}, DType::boolean);
    kernels::cast({.x = y, .y = back}, device.compute());
    CHECK(back.to_doubles() == std::vector<double>{0, 1});
  }
}

TEST_SUITE_END();
