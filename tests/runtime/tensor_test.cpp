#include "zerograd/runtime/tensor.h"

#include <cmath>
#include <limits>

#include "tests/support/error_message.h"
#include "zerograd/runtime/checked_product.h"
#include "zerograd/runtime/plan.h"

using namespace zg;

TEST_CASE("bf16 rounds to nearest even and keeps NaN") {
  CHECK(bf16(1.0f).bits == 0x3f80);
  CHECK(bf16(1.00390625f).bits == 0x3f80);  // a tie goes to the even 1.0
  CHECK(bf16(1.01171875f).bits == 0x3f82);  // a tie goes up to the even
  CHECK(bf16(3.4e38f).bits == 0x7f80);      // beyond the largest: infinity
  CHECK(std::isnan(static_cast<float>(bf16(std::numeric_limits<float>::quiet_NaN()))));
  CHECK(static_cast<float>(bf16(std::ldexp(1.0f, -130))) == std::ldexp(1.0f, -130));  // subnormal
}

TEST_CASE("every f16 value that is converted to f32 and back is unchanged") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float_from_f16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      CHECK(std::isnan(float_from_f16(f16_from_float(value))));
    } else if (f16_from_float(value) != bits) {
      FAIL("pattern " << bits << " came back as " << f16_from_float(value));
    }
  }
}

TEST_CASE("f16 rounds to nearest even, also into subnormals and infinity") {
  CHECK(f16_from_float(1.0f + 0x1p-11f) == 0x3c00);             // tie to even
  CHECK(f16_from_float(1.0f + 0x1p-11f + 0x1p-20f) == 0x3c01);  // just above the tie
  CHECK(f16_from_float(65519.0f) == 0x7bff);
  CHECK(f16_from_float(65520.0f) == 0x7c00);
  CHECK(f16_from_float(0x1p-24f) == 0x0001);
  CHECK(f16_from_float(0x1p-25f) == 0x0000);  // tie to even zero
  CHECK(f16_from_float(-0x1.8p-24f) == 0x8002);
}

TEST_CASE("f16 subnormals round to nearest even at every halfway point") {
  for (uint32_t bits = 0; bits < 0x400; ++bits) {
    CAPTURE(bits);
    const float tie = (static_cast<float>(bits) + 0.5f) * 0x1p-24f;
    CHECK(f16_from_float(tie) == bits + bits % 2);
    CHECK(f16_from_float(std::nextafter(tie, 0.0f)) == bits);
    CHECK(f16_from_float(std::nextafter(tie, 1.0f)) == bits + 1);
  }
}

TEST_CASE("shapes index from both ends, broadcast, and refuse invalid axes, ranks and extents") {
  const Shape shape{2, 3, 4};
  CHECK(shape[-1] == 4);
  CHECK(shape.numel() == 24);
  CHECK(shape.str() == "[2, 3, 4]");
  CHECK(Shape{}.numel() == 1);
  CHECK(broadcast({2, 1, 4}, {3, 1}, "add") == Shape{2, 3, 4});
  CHECK_THROWS_WITH_AS(
      broadcast({2, 3}, {2, 4}, "add"),
      "add: cannot broadcast [2, 3] with [2, 4]; axis -1 has 3 against 4, expected equal extents "
      "or 1",
      ShapeError);
  CHECK_THROWS_AS(shape[3], ShapeError);
  CHECK_THROWS_AS((Shape{1, 1, 1, 1, 1, 1, 1}), ShapeError);
  CHECK_THROWS_AS((Shape{-1}), ShapeError);
}

TEST_CASE("a product of sizes is exact, or an error") {
  constexpr int64_t half = int64_t{1} << 59;
  CHECK(checked_product({}, "x") == 1);
  CHECK(checked_product({half, 1, 1}, "x") == half);
  CHECK(checked_product({half - 1, 2, 0}, "x") == 0);
  CHECK(Shape{half - 1, 2}.numel() == 2 * (half - 1));
  CHECK(testing::message_of<ShapeError>([] {
          checked_product({half, 2}, "flat");
        }) ==
        "flat: expected sizes of 0 or more with a product of at most 2^60 - 1, got "
        "576460752303423488 x 2");
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{half, 2},
                                            {INT64_MAX},
                                            {int64_t{1} << 62, 4},
                                            {0, half, 2},
                                            {INT64_MAX, INT64_MAX, INT64_MAX},
                                            {-1, 0}}) {
    CAPTURE(sizes.front());
    CHECK_THROWS_AS(Shape(std::span<const int64_t>(sizes)), ShapeError);
    CHECK_FALSE(checked_product(sizes));
  }
  CHECK_THROWS_AS((Shape{half, 1}.with(1, 2)), ShapeError);
}

TEST_CASE("views share bytes, and copies do not") {
  const Device device = Device::cpu();
  const Tensor x = Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5}, {2, 3}, device);
  CHECK(x.view({3, 2}).data<float>() == x.data<float>());
  CHECK(x.slice(1, 2).to_host<float>() == std::vector<float>{3, 4, 5});
  CHECK(x.flat(1, 3).to_host<float>() == std::vector<float>{1, 2, 3});
  const Tensor y = Tensor::empty({2, 3}, DType::f32, device);
  copy(x, y, device.compute());
  y.data<float>()[0] = 9;
  CHECK(x.data<float>()[0] == 0);
  CHECK_THROWS_AS(x.view({4}), ShapeError);
  CHECK_THROWS_AS(x.slice(1, 3), ShapeError);
  CHECK_THROWS_AS(x.data<double>(), DTypeError);
  CHECK_THROWS_AS(x.item(), ShapeError);
  CHECK_THROWS_AS(Tensor().device(), ShapeError);
  CHECK_THROWS_AS(Tensor::from(std::vector<float>{1}, {2}, device), ShapeError);
}

TEST_CASE("every dtype holds values and reports its size") {
  const Device device = Device::cpu();
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64,
                      DType::u8, DType::boolean}) {
    const Tensor x = Tensor::full({3}, 1.0, dtype, device);
    CHECK(x.bytes() == 3 * size_of(dtype));
    CHECK(x.to_doubles() == std::vector<double>{1, 1, 1});
  }
  CHECK(Tensor::full({2}, 3.0, DType::boolean, device).to_host<bool>() ==
        std::vector<bool>{true, true});
  for (const auto& [dtype, value] : {std::pair{DType::i32, 1e20},
                                     {DType::i32, double{NAN}},
                                     {DType::u8, 256.0},
                                     {DType::i64, 2.5}})
    CHECK_THROWS_AS(Tensor::full({2}, value, dtype, device), DTypeError);
}

TEST_CASE("a meta tensor counts its memory without holding any, and reads as zeros") {
  const Device device = Device::meta();
  const Tensor x = Tensor::zeros({1000}, DType::f32, device);
  CHECK(device.memory().live() == arena_bytes(4000));
  CHECK(x.raw() == nullptr);
  CHECK_THROWS_AS(x.data<float>(), Unsupported);
  CHECK(x.to_host<float>() == std::vector<float>(1000));
  CHECK(Tensor::full({}, 3.0, DType::f32, device).item() == 0.0);
  CHECK(Tensor::full({2}, 1.0, DType::boolean, device).to_host<bool>() ==
        std::vector<bool>{false, false});
}

TEST_CASE("devices are parsed by name") {
  CHECK(Device::parse("cpu:3").name() == "cpu:3");
  CHECK(Device::parse("meta").name() == "meta:0");
  CHECK_THROWS_AS(Device::parse("cuda:0"), Unsupported);
  for (const char* name : {"gpu", "cpu:", "cpu:x", "cpu:-1", "cpu:1x", ""})
    CHECK_THROWS_AS(Device::parse(name), ConfigError);
}

TEST_CASE("Device::cpu() is one device per index and options: the process's, or a rank's own") {
  const Device own = Device::cpu();
  CHECK(Device::cpu() == own);
  CHECK(Device::parse("cpu") == own);
  CHECK(Device::cpu(1) != own);
  CHECK(Device::cpu(0, {.threads = 1}) != own);
  CHECK(Device::cpu(0, {.separate = true}) != own);
  const Device two_threads = Device::cpu(0, {.threads = 2});
  CHECK(Device::cpu(0, {.threads = 2}) == two_threads);
  std::vector<Device> devices(3, own);
  const Program program = [&](Communicator& ranks, const Device& device) {
    CHECK(Device::cpu() == device);
    const Device other = Device::cpu(0, {.threads = 2});
    CHECK(other == Device::cpu(0, {.threads = 2}));
    CHECK(other != two_threads);
    devices[static_cast<size_t>(ranks.rank())] = device;
    Tensor::zeros({1000}, DType::f32, Device::cpu());  // counted by plan and run
  };
  const Plan plan = plan_ranks(3, program);
  const MemoryReport run = run_ranks(3, program, {.expect = &plan});
  CHECK(run.ranks == plan.ranks);
  CHECK(devices[0] != devices[1]);
  CHECK(devices[1] != devices[2]);
  CHECK(Device::cpu() == own);
}

TEST_CASE("the process's device lives as long as a tensor of it, and the next one counts anew") {
  {
    const Tensor last = Tensor::zeros({1 << 20}, DType::f32, Device::cpu()).slice(0, 1);
    CHECK(Device::cpu() == last.device());
    CHECK(Device::cpu().memory().lifetime_peak() == 1 << 22);
  }
  CHECK(Device::cpu().memory().lifetime_peak() == 0);
}
