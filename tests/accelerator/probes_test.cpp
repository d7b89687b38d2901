#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "tests/support/tested_type.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/runtime/comm/communicator.h"

// Faults, copies and memory that a device may treat in another way than its emulator.
// tools/gpu_check and tools/hpu_check run each case in a process of its own, first of all, because
// one that crashes ends its process.
using namespace zg;
using namespace zg::testing;

namespace {

Device tested_device(const Device::Options& options = {}) {
  return Device::parse(tested_name(), options);
}

bool is_emulated() {
  return !emulator_name(tested_type, 0).empty() ||
         contains(tested_device().description(), "emulated device");
}

/// Longer than the steps in which the memory of a device grows.
int64_t chunk_elements() { return (is_emulated() ? int64_t{3} << 20 : int64_t{300} << 20) / 4; }

/// A tensor of i32 over three pieces of memory that were taken from the system one after another.
Tensor over_three_growths(const Device& device, Space space = Space::device) {
  std::vector<Tensor> pieces;
  for (int piece = 0; piece < 3; ++piece)
    pieces.push_back(Tensor::empty({chunk_elements()}, DType::i32, device, space));
  pieces.clear();  // free neighbours merge
  return Tensor::empty({3 * chunk_elements()}, DType::i32, device, space);
}

/// 0, step, 2 step ... of each element of the tensor above.
std::vector<int32_t> multiples(int32_t step) {
  std::vector<int32_t> values(static_cast<size_t>(3 * chunk_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = step * static_cast<int32_t>(i);
  return values;
}

/// The first element that is not `step` times its index; -1: there is none.
int64_t first_wrong(std::span<const int32_t> values, int32_t step) {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != step * static_cast<int32_t>(i)) return static_cast<int64_t>(i);
  return -1;
}

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
  const Device device = tested_device();
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
  const Device device = tested_device();
  const Tensor ones = Tensor::full({2}, 1, DType::i32, device);
  const Tensor zero = Tensor::zeros({}, DType::i32, device);
  for (const BinaryOp op : {BinaryOp::divide, BinaryOp::remainder}) {
    kernels::binary({op, ones, zero, Tensor::empty({2}, DType::i32, device)}, device.compute());
    CHECK_THROWS_WITH_AS(device.compute().synchronize(),
                         doctest::Contains(": divisor[0] is 0; expected no 0"), ShapeError);
  }
}

TEST_CASE("probe: a target outside the vocabulary is a ShapeError") {
  const Device device = tested_device();
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
  const Device small = tested_device({.memory_limit = 4 << 20});
  CHECK_THROWS_AS(Tensor::empty({5 << 20}, DType::u8, small), OutOfMemory);
  CHECK(Tensor::full({1 << 20}, 3, DType::u8, small).to_host<uint8_t>() ==
        std::vector<uint8_t>(1 << 20, 3));
  // More than any device has.
  const Device device = tested_device();
  CHECK_THROWS_AS(Tensor::empty({int64_t{1} << 44}, DType::u8, device), OutOfMemory);
  CHECK(Tensor::full({7}, 2, DType::u8, device).to_host<uint8_t>() == std::vector<uint8_t>(7, 2));
}

TEST_CASE("probe: pinned memory of any size goes to the device and back") {
  const Device device = tested_device();
  // The pinned memory grows with each, so that some tensors cross what was there before.
  for (const int64_t bytes :
       {int64_t{1} << 20, (int64_t{3} << 20) + 5, int64_t{7} << 20, int64_t{40} << 20}) {
    CAPTURE(bytes);
    const std::vector<uint8_t> sent = numbered_bytes(bytes, 3);
    CHECK(there_and_back(sent, device) == sent);
  }
}

TEST_CASE("probe: ordinary memory that is changed after a copy does not change the copy") {
  const Device device = tested_device();
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

TEST_CASE("probe: a kernel and copies cross pieces of memory that were added one after another") {
  const Device device = tested_device();
  const Tensor x = over_three_growths(device), y = over_three_growths(device);
  const Tensor pinned = over_three_growths(device, Space::pinned);
  std::ranges::copy(multiples(1), pinned.data<int32_t>());
  copy(pinned, x, device.compute());
  kernels::binary({BinaryOp::add, x, x, y}, device.compute());
  fill_zero(x, device.compute());
  copy(y, pinned, device.compute());
  device.compute().synchronize();
  CHECK(first_wrong({pinned.data<int32_t>(), static_cast<size_t>(pinned.numel())}, 2) == -1);
  CHECK(x.flat(x.numel() - 5, 5).to_host<int32_t>() == std::vector<int32_t>(5, 0));
}

TEST_CASE("probe: kernels of ranks read their peers' memory, and ranks copy it") {
  const auto sum_and_send = [](Communicator& comm, const Device& device) {
    const Tensor x = over_three_growths(device);
    copy(Tensor::from(multiples(comm.rank() + 1), x.shape(), device), x, device.compute());
    const Tensor sum = x.alias(0, {x.numel() / 2}, DType::i64);
    comm.wait(comm.broadcast(x, 1, "probe"));
    CHECK(first_wrong(x.to_host<int32_t>(), 2) == -1);
    const int64_t last = sum.flat(sum.numel() - 1, 1).to_host<int64_t>()[0];
    comm.wait(comm.all_reduce(sum, "probe"));
    CHECK(sum.flat(sum.numel() - 1, 1).to_host<int64_t>()[0] == 2 * last);
    CHECK(first_wrong(x.to_host<int32_t>(), 4) == -1);
  };
  run_local(2, sum_and_send, {.type = tested_type});
}

TEST_CASE("probe: quotients and square roots have the CPU's bits, or the device says that not") {
  const auto results = [](const Device& device) {
    const Tensor a = random_tensor({4096}, DType::f32, device, 1, 0.0, 1e3);
    const Tensor b = random_tensor({4096}, DType::f32, device, 2, 1e-3, 10.0);
    const Tensor quotient = Tensor::empty({4096}, DType::f32, device);
    const Tensor root = Tensor::empty({4096}, DType::f32, device);
    kernels::binary({BinaryOp::divide, a, b, quotient}, device.compute());
    kernels::unary({UnaryOp::sqrt, a, root}, device.compute());
    return std::pair(quotient.to_host<float>(), root.to_host<float>());
  };
  const auto [quotients, roots] = results(tested_device());
  const auto [expected_quotients, expected_roots] = results(Device::cpu());
  if (contains(tested_device().description(), "square root not correctly rounded")) return;
  CHECK(quotients == expected_quotients);
  CHECK(roots == expected_roots);
}

TEST_CASE("probe: memory grows by 8 GiB at once, or by as much as the device has") {
  const Device device = tested_device();
  constexpr int64_t GiB = int64_t{1} << 30;
  Tensor large;
  for (int64_t bytes = is_emulated() ? GiB / 16 : 8 * GiB; !large; bytes /= 2) {
    try {
      large = Tensor::empty({bytes}, DType::u8, device);
    } catch (const OutOfMemory&) {
      REQUIRE(bytes > GiB);
    }
  }
  const std::vector<uint8_t> bytes = numbered_bytes(1 << 20, 5);
  const Tensor last = large.slice(large.numel() - (1 << 20), large.numel());
  fill_zero(large, device.compute());
  copy(Tensor::from(bytes, last.shape(), device), last, device.compute());
  CHECK(last.to_host<uint8_t>() == bytes);
  CHECK(large.slice(0, 9).to_host<uint8_t>() == std::vector<uint8_t>(9, 0));
}

TEST_SUITE_END();
