#include <doctest/doctest.h>

#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/movement/movement.h"

using namespace zg;
using namespace zg::testing;

TEST_SUITE_BEGIN("every device");

TEST_CASE("a cuda device counts the same memory as a meta device") {
  const auto run = [](const Device& device) {
    const PhaseScope phase(device, "work");
    const Tensor x = Tensor::zeros({1000}, DType::f32, device);
    const Tensor pinned = Tensor::empty({3 << 20}, DType::u8, device, Space::pinned);
    { const Tensor large = Tensor::empty({5 << 20}, DType::bf16, device); }
    const Tensor y = Tensor::empty({2 << 20}, DType::bf16, device);
    std::vector<int64_t> books;
    for (Space space : {Space::device, Space::pinned}) {
      books.push_back(device.memory().live(space));
      books.push_back(device.memory().peak(space));
      books.push_back(device.memory().reserved(space));
    }
    return books;
  };
  CHECK(run(Device::cuda()) == run(Device::meta()));
}

TEST_CASE("a cuda device refuses allocations above its limit, and an absent device is an error") {
  const Device small = Device::cuda(0, {.memory_limit = 4 << 20});
  CHECK_THROWS_AS(Tensor::empty({5 << 20}, DType::u8, small), OutOfMemory);
  CHECK(small.memory().live() == 0);
  CHECK_THROWS_AS(Tensor::empty({4}, DType::f64, small), Unsupported);
  CHECK_THROWS_AS(Device::cuda(99), ConfigError);
  CHECK(Device::parse("cuda:1").name() == "cuda:1");
}

TEST_CASE("values copied to a cuda device and back are unchanged, in every dtype") {
  const Device device = Device::cuda(1);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
    const Tensor x = random_tensor({3, 77}, dtype, device, 5, 0.0, 9.0);
    CHECK(bytes_of(x) == bytes_of(random_tensor({3, 77}, dtype, Device::cpu(), 5, 0.0, 9.0)));
    const Tensor pinned = Tensor::empty({3, 77}, dtype, device, Space::pinned);
    const Tensor back = Tensor::empty({3, 77}, dtype, device);
    copy(x, pinned, device.compute());
    copy(pinned, back, device.compute());
    CHECK(same_bits(x, back));
  }
  CHECK(Tensor::full({}, 2.5, DType::f16, device).item() == 2.5);
  CHECK(Tensor::zeros({4}, DType::i64, device).to_host<int64_t>() == std::vector<int64_t>(4));
}

TEST_CASE("an error that a cuda kernel finds is thrown once, by the next wait") {
  const Device device = Device::cuda();
  const Tensor ids = Tensor::from(std::vector<int64_t>{1, 5, -2}, {3}, device);
  const Tensor weight = random_tensor({5, 8}, DType::f32, device, 1);
  const Tensor y = Tensor::empty({3, 8}, DType::f32, device);
  kernels::embedding_forward({.ids = ids, .weight = weight, .y = y}, device.compute());
  std::string message;  // two blocks find an error each, in any order
  try {
    device.compute().synchronize();
  } catch (const ShapeError& error) {
    message = error.what();
  }
  CHECK((message == "embedding_forward: ids[1] is 5; expected 0 to 4" ||
         message == "embedding_forward: ids[2] is -2; expected 0 to 4"));
  device.compute().synchronize();
  const Tensor ones = Tensor::full({2}, 1, DType::i32, device);
  const Tensor zero = Tensor::zeros({}, DType::i32, device);
  kernels::binary({BinaryOp::divide, ones, zero, Tensor::empty({2}, DType::i32, device)},
                  device.compute());
  CHECK_THROWS_WITH_AS(device.compute().synchronize(),
                       "div or remainder: divisor[0] is 0; expected no 0", ShapeError);
}

TEST_CASE("an op without a cuda kernel throws Unsupported and names itself") {
  const Device device = Device::cuda();
  const Tensor x = Tensor::zeros({1}, DType::f32, device);
  Kernel<Unary> none = kernels::unary;
  none[Device::Type::cuda].function = nullptr;
  CHECK_THROWS_WITH_AS(none({UnaryOp::exp, x, x}, device.compute()), "unary: no cuda kernel",
                       Unsupported);
}

TEST_CASE("a target outside the vocabulary is an error at the next wait, and counts as ignored") {
  const Device device = Device::cuda();
  const auto zeros = [&](const Shape& shape) { return Tensor::zeros(shape, DType::f32, device); };
  const Tensor loss = zeros({3}), dx = zeros({3, 8});
  kernels::projection_cross_entropy(
      {.x = zeros({3, 8}),
       .weight = zeros({5, 8}),
       .targets = Tensor::from(std::vector<int32_t>{0, 5, -1}, {3}, device),
       .loss = loss,
       .dx = dx},
      device.compute());
  CHECK_THROWS_WITH_AS(device.compute().synchronize(),
                       "projection_cross_entropy: targets[1] is 5; expected 0 to 4", ShapeError);
  CHECK(excess(loss, {std::log(5.0), 0, 0}, 0, 1e-6) <= 1);
}

TEST_SUITE_END();
