#include <doctest/doctest.h>

#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/error.h"

// Memory and modules under the rules of Intel's driver; CMakeLists.txt runs some cases on drivers
// with other settings, too.
using namespace zg;
using namespace zg::testing;

namespace {

Tensor pinned(const Tensor& of) {
  const Tensor made = Tensor::empty(of.shape(), of.dtype(), of.device(), Space::pinned);
  copy(of, made, of.device().compute());
  return made;
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("kernels compute on pinned operands what they compute on device memory") {
  const Device device = Device::hpu();
  Stream& stream = device.compute();
  const Tensor x = random_tensor({3001}, DType::f32, device, 1);
  const auto on_both = [&](const auto& compute) {
    const Tensor near = random_tensor({3001}, DType::f32, device, 2), far = pinned(near);
    compute(x, near);
    compute(pinned(x), far);
    CHECK(far.buffer()->space() == Space::pinned);
    CHECK(same_bits(near, far));
    CHECK(!same_bits(near, random_tensor({3001}, DType::f32, device, 2)));
  };
  on_both([&](const Tensor& a, const Tensor& y) { kernels::cast({.x = a, .y = y}, stream); });
  on_both([&](const Tensor& a, const Tensor& y) {
    kernels::axpby({.x = a, .y = y, .a = 2.0, .b = 0.5}, stream);
    kernels::axpby({.x = y, .y = y, .a = 2.0, .b = 0.5}, stream);  // one memory, read and written
  });
  on_both([&](const Tensor& a, const Tensor& y) {
    kernels::fold_gradient(
        {.parts = {{.leaf = x, .sum = y}, {.leaf = a, .sum = y}}, .rounding = DType::f32}, stream);
  });
  const Tensor half = Tensor::empty({3001}, DType::bf16, device), far = pinned(half);
  kernels::cast({.x = x, .y = half}, stream);
  kernels::cast({.x = pinned(x), .y = far}, stream);
  CHECK(same_bits(half, far));
}

TEST_CASE("copies and fills of pinned memory cross the ends of imports") {
  const Device device = Device::hpu();
  Stream& stream = device.compute();
  constexpr int64_t numel = 3 << 20;  // 12 MiB; pinned memory is imported in steps of 2 MiB or more
  const Tensor first = Tensor::empty({100}, DType::f32, device, Space::pinned);
  const Tensor across = Tensor::empty({numel}, DType::f32, device, Space::pinned);
  std::vector<float> values(numel);
  std::iota(values.begin(), values.end(), 1.0f);
  copy(Tensor::from(values, {numel}, device), across, stream);
  const Tensor back = Tensor::zeros({numel}, DType::f32, device);
  copy(across, back, stream);
  CHECK(back.to_host<float>() == values);
  fill_zero(across, stream);
  copy(across, back, stream);
  CHECK(back.to_host<float>() == std::vector<float>(numel));
  stream.copy(across.raw(), values.data(), values.size() * sizeof(float));  // of the process
  CHECK(across.to_host<float>() == values);
}

TEST_CASE(
    "a growth of 8 GiB is mapped, and one beyond the memory is refused with the result of the "
    "driver's call") {
  const Device device = Device::hpu();
  const Tensor before = Tensor::zeros({1 << 19}, DType::f32, device);  // so it does not begin at 0
  const auto allocate = [&](int64_t bytes) { Tensor::empty({bytes}, DType::u8, device); };
  if (std::getenv("ZE_TEST_DRIVER_MEMORY"))
    CHECK_NOTHROW(allocate(int64_t{8} << 30));
  else  // of 2 GiB
    CHECK(contains(message_of<OutOfMemory>([&] { allocate(int64_t{3} << 30); }),
                   "; zePhysicalMemCreate: out of device memory"));
}

TEST_CASE("two threads build two modules at the same time") {
  const auto on_thread = [](int index, const auto& compute) {
    return std::thread([=] {
      const Device device = Device::hpu(index);
      const Tensor x = Tensor::zeros({64}, DType::f32, device);
      compute(x, device.compute());
      device.compute().synchronize();
    });
  };
  std::thread negates = on_thread(0, [](const Tensor& x, Stream& stream) {
    kernels::unary({.op = UnaryOp::negate, .x = x, .y = x}, stream);
  });
  std::thread adds = on_thread(1, [](const Tensor& x, Stream& stream) {
    kernels::binary({.op = BinaryOp::add, .a = x, .b = x, .y = x}, stream);
  });
  negates.join();
  adds.join();
}

TEST_SUITE_END();
