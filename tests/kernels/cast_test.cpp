#include <doctest/doctest.h>

#include <limits>

#include "kernels/elementwise.h"
#include "tests/op_case.h"

using namespace zg;
using namespace zg::testing;

// Between floating types: elementwise_test.cpp.

TEST_CASE("cast to integers truncates, saturates and turns NaN into 0" *
          doctest::test_suite("every device")) {
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

TEST_CASE("cast between integers wraps around" * doctest::test_suite("every device")) {
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

TEST_CASE("cast between integers and booleans keeps values that fit" *
          doctest::test_suite("every device")) {
  const Device device = devices_at_every_level().back();
  const std::vector<DType> types =
      on_device({DType::i32, DType::i64, DType::u8, DType::f32, DType::bf16, DType::f64}, device);
  for (DType from : types)
    for (DType to : types) {
      CAPTURE(name_of(from));
      CAPTURE(name_of(to));
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
