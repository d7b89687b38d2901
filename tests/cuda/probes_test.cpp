#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "tests/support/op_case.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/movement/movement.h"

// Faults and copies that a GPU may treat in another way than the emulator. tools/gpu_check runs
// each case in a process of its own, first of all, because one that crashes ends its process.
using namespace zg;
using namespace zg::testing;

namespace {

std::vector<uint8_t> numbered_bytes(int64_t count, uint8_t first) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  std::iota(bytes.begin(), bytes.end(), first);
  return bytes;
}

/// Copies through pinned memory: to the device and back.
std::vector<uint8_t> there_and_back(const std::vector<uint8_t>& bytes, const Device& device) {
  const Shape shape{static_cast<int64_t>(bytes.size())};
  const Tensor pinned = Tensor::empty(shape, DType::u8, device, Space::pinned);
  const Tensor back = Tensor::empty(shape, DType::u8, device, Space::pinned);
  const Tensor on_device = Tensor::empty(shape, DType::u8, device);
  std::copy(bytes.begin(), bytes.end(), pinned.data<uint8_t>());
  copy(pinned, on_device, device.compute());
  copy(on_device, back, device.compute());
  device.compute().synchronize();
  return {back.data<uint8_t>(), back.data<uint8_t>() + back.numel()};
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("probe: a token id outside the vocabulary is a ShapeError, and the device goes on") {
  const Device device = Device::cuda();
  const Tensor ids = Tensor::from(std::vector<int64_t>{1, 5, -2}, {3}, device);
  const Tensor weight = random_tensor({5, 8}, DType::f32, device, 1);
  const Tensor y = Tensor::empty({3, 8}, DType::f32, device);
  kernels::embedding_forward({.ids = ids, .weight = weight, .y = y}, device.compute());
  CHECK_THROWS_WITH_AS(device.compute().synchronize(), doctest::Contains("embedding_forward: ids["),
                       ShapeError);
  kernels::embedding_forward(
      {.ids = Tensor::from(std::vector<int64_t>{4, 0, 2}, {3}, device), .weight = weight, .y = y},
      device.compute());
  CHECK_NOTHROW(device.compute().synchronize());
}

TEST_CASE("probe: a divisor of 0 is a ShapeError") {
  const Device device = Device::cuda();
  const Tensor ones = Tensor::full({2}, 1, DType::i32, device);
  const Tensor zero = Tensor::zeros({}, DType::i32, device);
  kernels::binary({BinaryOp::divide, ones, zero, Tensor::empty({2}, DType::i32, device)},
                  device.compute());
  CHECK_THROWS_WITH_AS(device.compute().synchronize(), doctest::Contains("binary: divisor[0] is 0"),
                       ShapeError);
}

TEST_CASE("probe: a target outside the vocabulary is a ShapeError") {
  const Device device = Device::cuda();
  const auto zeros = [&](const Shape& shape) { return Tensor::zeros(shape, DType::f32, device); };
  kernels::projection_cross_entropy(
      {.x = zeros({3, 8}),
       .weight = zeros({5, 8}),
       .targets = Tensor::from(std::vector<int32_t>{0, 5, -1}, {3}, device),
       .loss = zeros({3}),
       .dx = zeros({3, 8})},
      device.compute());
  CHECK_THROWS_WITH_AS(device.compute().synchronize(),
                       doctest::Contains("projection_cross_entropy: targets[1] is 5"), ShapeError);
}

TEST_CASE("probe: an allocation that does not fit is OutOfMemory, and a smaller one still works") {
  const Device small = Device::cuda(0, {.memory_limit = 4 << 20});
  CHECK_THROWS_AS(Tensor::empty({5 << 20}, DType::u8, small), OutOfMemory);
  CHECK(Tensor::full({1 << 20}, 3, DType::u8, small).to_host<uint8_t>() ==
        std::vector<uint8_t>(1 << 20, 3));
  // More than any device has.
  const Device device = Device::cuda();
  CHECK_THROWS_AS(Tensor::empty({int64_t{1} << 44}, DType::u8, device), OutOfMemory);
  CHECK(Tensor::full({7}, 2, DType::u8, device).to_host<uint8_t>() == std::vector<uint8_t>(7, 2));
}

TEST_CASE("probe: pinned memory of any size goes to the device and back") {
  const Device device = Device::cuda();
  // The pinned memory grows with each, so that some tensors cross what was there before.
  for (const int64_t bytes :
       {int64_t{1} << 20, (int64_t{3} << 20) + 5, int64_t{7} << 20, int64_t{40} << 20}) {
    CAPTURE(bytes);
    const std::vector<uint8_t> sent = numbered_bytes(bytes, 3);
    CHECK(there_and_back(sent, device) == sent);
  }
}

TEST_CASE("probe: ordinary memory that is changed after a copy does not change the copy") {
  const Device device = Device::cuda();
  std::vector<Tensor> tensors;
  std::vector<uint8_t> bytes;
  for (uint8_t first = 0; first < 8; ++first) {
    bytes = numbered_bytes(3 << 20, first);
    tensors.push_back(Tensor::from(bytes, {static_cast<int64_t>(bytes.size())}, device));
    std::fill(bytes.begin(), bytes.end(), uint8_t{0});
  }
  for (uint8_t first = 0; first < 8; ++first)
    CHECK(tensors[first].to_host<uint8_t>() == numbered_bytes(3 << 20, first));
}

TEST_SUITE_END();
