#include <doctest/doctest.h>

#include "tests/support/op_case.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/error.h"

// Faults that HPU kernels report, and arguments that they refuse.
using namespace zg;
using namespace zg::testing;

namespace {

template <class T>
Tensor of(const Device& device, const std::vector<T>& values) {
  return Tensor::from(values, {static_cast<int64_t>(values.size())}, device);
}

Tensor matrix(const Device& device, int64_t rows, int64_t columns) {
  return Tensor::full({rows, columns}, 1, DType::f32, device);
}

/// The first wait throws the message, the next one does not throw.
void check_told(const Device& device, const char* words) {
  CHECK_THROWS_WITH_AS(device.compute().synchronize(), words, ShapeError);
  device.compute().synchronize();
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE(
    "an index out of range is an error at the next wait, once, and element 0 is read instead") {
  const Device device = Device::hpu();
  Stream& stream = device.compute();
  const Tensor y = matrix(device, 3, 8);
  kernels::embedding_forward({.ids = of<int64_t>(device, {1, 5, 2}),
                              .weight = random_tensor({5, 8}, DType::f32, device, 1),
                              .y = y},
                             stream);
  check_told(device, "embedding_forward: ids[1] is 5; expected 0 to 4");

  const Tensor picked = Tensor::zeros({3}, DType::i64, device);
  kernels::gather({.x = of<int64_t>(device, {7, 8, 9}),
                   .index = of<int32_t>(device, {2, 1, -1}),
                   .y = picked,
                   .axis = 0},
                  stream);
  check_told(device, "gather: index[2] is -1; expected 0 to 2");
  CHECK(picked.to_host<int64_t>() == std::vector<int64_t>{9, 8, 7});
}

TEST_CASE("a fault of the last kernel before a device is released is thrown") {
  const Device device = Device::hpu();
  const Tensor picked = Tensor::zeros({1}, DType::i64, device);
  kernels::gather({.x = of<int64_t>(device, {7, 8, 9}),
                   .index = of<int32_t>(device, {3}),
                   .y = picked,
                   .axis = 0},
                  device.compute());
  CHECK_THROWS_AS(device.compute().synchronize(), ShapeError);
}

TEST_CASE("every index into an empty axis is an error, and nothing is read") {
  const Device device = Device::hpu();
  const Tensor y = Tensor::zeros({1, 8}, DType::f32, device);
  kernels::embedding_forward(
      {.ids = of<int64_t>(device, {0}), .weight = matrix(device, 0, 8), .y = y}, device.compute());
  check_told(device, "embedding_forward: ids[0] is 0; expected 0 to -1");
  CHECK(y.to_doubles() == std::vector<double>(8, 0.0));
  kernels::gather({.x = matrix(device, 0, 8),
                   .index = Tensor::zeros({1, 8}, DType::i64, device),
                   .y = y,
                   .axis = 0},
                  device.compute());
  CHECK_THROWS_AS(device.compute().synchronize(), ShapeError);
}

TEST_CASE(
    "scatter_add and embedding_backward report an index out of range and add nothing for it") {
  const Device device = Device::hpu();
  Stream& stream = device.compute();
  const Tensor sums = Tensor::zeros({2}, DType::f32, device);
  kernels::scatter_add({.x = of<float>(device, {1, 2, 4}),
                        .index = of<int64_t>(device, {1, 2, 1}),
                        .y = sums,
                        .axis = 0},
                       stream);
  check_told(device, "scatter_add: index[1] is 2; expected 0 to 1");
  CHECK(sums.to_doubles() == std::vector<double>{0, 5});

  const Tensor dweight = Tensor::full({2, 1}, NAN, DType::f32, device);
  kernels::embedding_backward({.ids = of<int32_t>(device, {1, 9, 1, 0}),
                               .dy = Tensor::from<float>({1, 2, 4, 8}, {4, 1}, device),
                               .dweight = dweight},
                              stream);
  check_told(device, "embedding_backward: ids[1] is 9; expected 0 to 1");
  CHECK(dweight.to_doubles() == std::vector<double>{8, 5});
}

TEST_CASE(
    "a target outside the classes is an error at the next wait, and its loss and gradient are 0") {
  const Device device = Device::hpu();
  Stream& stream = device.compute();
  const auto check_all = [&](const Tensor& targets, const std::string& is) {
    const Tensor logits = random_tensor({3, 5}, DType::f32, device, 1);
    const Tensor loss = Tensor::empty({3}, DType::f32, device);
    const Tensor log_sum = Tensor::empty({3}, DType::f32, device);
    const Tensor dlogits = Tensor::empty({3, 5}, DType::f32, device);
    kernels::cross_entropy_forward(
        {.logits = logits, .targets = targets, .loss = loss, .log_sum = log_sum}, stream);
    check_told(device, ("cross_entropy_forward: targets[1] is " + is).c_str());
    CHECK(loss.to_doubles()[1] == 0.0);
    kernels::cross_entropy_backward({.logits = logits,
                                     .targets = targets,
                                     .log_sum = log_sum,
                                     .dloss = Tensor::full({3}, 1, DType::f32, device),
                                     .dlogits = dlogits},
                                    stream);
    check_told(device, ("cross_entropy_backward: targets[1] is " + is).c_str());
    CHECK(dlogits.slice(1, 2).to_doubles() == std::vector<double>(5, 0.0));
    const Tensor dx = Tensor::empty({3, 8}, DType::f32, device);
    kernels::projection_cross_entropy({.x = matrix(device, 3, 8),
                                       .weight = random_tensor({5, 8}, DType::f32, device, 2),
                                       .targets = targets,
                                       .loss = loss,
                                       .dx = dx},
                                      stream);
    check_told(device, ("projection_cross_entropy: targets[1] is " + is).c_str());
    CHECK(loss.to_doubles()[1] == 0.0);
    CHECK(dx.slice(1, 2).to_doubles() == std::vector<double>(8, 0.0));
  };
  check_all(of<int64_t>(device, {1, 5, 4}), "5; expected 0 to 4");
  check_all(of<int32_t>(device, {-1, -2, 0}), "-2; expected 0 to 4");
}

TEST_CASE(
    "the error for a target outside the classes names its row, also in a later block of rows") {
  const Device device = Device::hpu();
  const int64_t N = 2700, V = 4099;
  std::vector<int64_t> targets(N, 0);
  targets.back() = V;
  kernels::projection_cross_entropy({.x = Tensor::zeros({N, 1}, DType::bf16, device),
                                     .weight = Tensor::zeros({V, 1}, DType::bf16, device),
                                     .targets = of(device, targets),
                                     .loss = Tensor::empty({N}, DType::f32, device),
                                     .dx = Tensor::empty({N, 1}, DType::f32, device)},
                                    device.compute());
  check_told(device, "projection_cross_entropy: targets[2699] is 4099; expected 0 to 4098");
}

TEST_CASE("an integer division by 0 is an error at the next wait") {
  const Device device = Device::hpu();
  for (DType dtype : {DType::i32, DType::i64}) {
    const Tensor y = Tensor::empty({3}, dtype, device);
    const Tensor ones = Tensor::full({3}, 6, dtype, device);
    const Tensor divisors = Tensor::full({3}, 2, dtype, device);
    fill_zero(divisors.slice(1, 2), device.compute());
    kernels::binary({.op = BinaryOp::divide, .a = ones, .b = divisors, .y = y}, device.compute());
    check_told(device, "div: divisor[1] is 0; expected no 0");
    CHECK(y.to_doubles() == std::vector<double>{3, 0, 3});
  }
}

// A message of the driver fails the test (CMakeLists.txt).
TEST_CASE("a device can be released while work that reports faults is queued") {
  const Device device = Device::hpu();
  const Tensor picked = Tensor::zeros({3}, DType::i64, device);
  kernels::gather({.x = of<int64_t>(device, {7, 8, 9}),
                   .index = of<int32_t>(device, {2, 1, 0}),
                   .y = picked,
                   .axis = 0},
                  device.compute());
}

TEST_CASE("f16 is refused by name in arithmetic, and accepted in copies") {
  const Device device = Device::hpu();
  Stream& stream = device.compute();
  const Tensor half = Tensor::from<f16>({f16(1.0f), f16(2.0f)}, {2}, device);
  const Tensor single = Tensor::zeros({2}, DType::f32, device);
  CHECK_THROWS_WITH_AS(kernels::gelu_forward({.x = half, .y = half}, stream),
                       "gelu: no hpu kernel for f16; expected f32 or bf16", Unsupported);
  CHECK_THROWS_WITH_AS(
      kernels::cast({.x = half, .y = single}, stream),
      "cast: no hpu kernel for f16; expected f32 or bf16 or i32 or i64 or u8 or bool", Unsupported);
  CHECK_THROWS_WITH_AS(kernels::axpby({.x = single, .y = half}, stream),
                       "axpby: no hpu kernel for f16; expected f32 or bf16", Unsupported);
  CHECK_THROWS_WITH_AS(
      kernels::fold_gradient({.parts = {{.leaf = single, .sum = single}}, .rounding = DType::f16},
                             stream),
      "fold_gradient: no hpu kernel for f16; expected f32 or bf16", Unsupported);
  const Tensor back = Tensor::empty({2}, DType::f16, device);
  kernels::strided_copy({.x = half, .y = back, .extents = {2}, .x_strides = {1}, .y_strides = {1}},
                        stream);
  CHECK(same_bits(back, half));
}

TEST_SUITE_END();
