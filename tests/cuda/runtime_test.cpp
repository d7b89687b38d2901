#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fakes/cuda/launch.h"
#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "tests/support/scoped_variable.h"
#include "zerograd/kernels/cuda/launch.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/cuda/api.h"
#include "zerograd/runtime/cuda/stream.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/pending.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr int64_t one_mib = int64_t{1} << 20;

Tensor allocate(const Device& device, int64_t bytes, Space space = Space::device) {
  return Tensor::empty({bytes}, DType::u8, device, space);
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("an arena stays unchanged when the driver refuses its growth, and can grow later") {
  const Device device = Device::cuda();
  const Tensor first = allocate(device, one_mib);
  int64_t bytes = 4 * one_mib;  // more than the arena has, each time
  for (const std::string call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    CAPTURE(call);
    const int64_t reserved = device.memory().reserved(), live = device.memory().live();
    emulator::plant_failure(call, CUDA_ERROR_OUT_OF_MEMORY);
    const std::string message = message_of<OutOfMemory>([&] { allocate(device, bytes); });
    CHECK(contains(message, call + ": CUDA_ERROR_OUT_OF_MEMORY (2)"));
    CHECK(device.memory().reserved() == reserved);
    CHECK(device.memory().live() == live);
    const Tensor x = Tensor::full({bytes}, 7, DType::u8, device);
    CHECK(x.to_host<uint8_t>().back() == 7);
    bytes *= 2;
  }
  emulator::plant_failure("cudaHostRegister", cudaErrorMemoryAllocation);
  CHECK(contains(message_of<OutOfMemory>([&] { allocate(device, one_mib, Space::pinned); }),
                 "cudaHostRegister: out of memory"));
  CHECK(allocate(device, one_mib, Space::pinned).raw());
}

TEST_CASE("a driver error other than out of memory is thrown as a DeviceError with its name") {
  const Device device = Device::cuda();
  for (const std::string call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    emulator::plant_failure(call, CUDA_ERROR_INVALID_DEVICE);
    CHECK(message_of<DeviceError>([&] { allocate(device, one_mib); }) ==
          "cuda: " + call + ": CUDA_ERROR_INVALID_DEVICE (101)");
  }
  emulator::plant_failure("cudaHostRegister", cudaErrorInvalidValue);
  CHECK(message_of<DeviceError>([&] { allocate(device, one_mib, Space::pinned); }) ==
        "cuda: cudaHostRegister: invalid argument");
}

TEST_CASE("pinned tensors that lie in several registrations are copied and zeroed") {
  const Device device = Device::cuda();
  const Tensor x = random_tensor({3 * one_mib}, DType::u8, device, 5, 0.0, 255.0);
  std::vector<Tensor> pinned;
  // Each of 3 MiB, and each growth registers whole steps of 2 MiB.
  for (int i = 0; i < 4; ++i) pinned.push_back(allocate(device, 3 * one_mib, Space::pinned));
  for (const Tensor& tensor : pinned) copy(x, tensor, device.compute());
  const Tensor back = allocate(device, 3 * one_mib);
  for (const Tensor& tensor : pinned) {
    copy(tensor, back, device.compute());
    CHECK(same_bits(x, back));
    copy(tensor, pinned[0], device.compute());  // both ends have edges, at different places
    CHECK(same_bits(x, pinned[0]));
  }
  fill_zero(pinned[1], device.compute());
  CHECK(pinned[1].to_host<uint8_t>() == std::vector<uint8_t>(static_cast<size_t>(3 * one_mib)));
}

TEST_CASE("ordinary memory may be changed after a copy from it, of any size") {
  const Device device = Device::cuda();
  for (const int64_t bytes : {int64_t{4}, one_mib / 2, one_mib, 3 * one_mib + 5}) {
    const Tensor x = allocate(device, bytes), y = allocate(device, bytes);
    std::vector<uint8_t> values(static_cast<size_t>(bytes), 1);
    device.compute().copy(x.raw(), values.data(), values.size());
    values.assign(values.size(), 2);
    device.compute().copy(y.raw(), values.data(), values.size());
    values.assign(values.size(), 3);
    CHECK(x.to_host<uint8_t>() == std::vector<uint8_t>(values.size(), 1));
    CHECK(y.to_host<uint8_t>() == std::vector<uint8_t>(values.size(), 2));
  }
}

TEST_CASE("values on their way to the host arrive at the next wait, between copies to the device") {
  const Device device = Device::cuda();
  // The staging memory has 1 MiB, and a value takes 16 bytes of it.
  constexpr int64_t count = 5000, rounds = 40;
  std::vector<float> numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[static_cast<size_t>(i)] = static_cast<float>(i);
  const Tensor x = Tensor::from(numbers, {count}, device);
  const Tensor other = allocate(device, one_mib);
  const std::vector<uint8_t> ordinary(static_cast<size_t>(one_mib / 8), 9);
  std::vector<PendingItem> items;
  for (int64_t i = 0; i < count; ++i) {
    items.emplace_back(x.flat(i, 1));
    if (i % (count / rounds) == 0)
      device.compute().copy(other.raw(), ordinary.data(), ordinary.size());
  }
  PendingItem(x.flat(0, 1));                // destroyed at once
  CHECK(std::isnan(items.back().value()));  // not yet on the host
  device.compute().synchronize();
  for (int64_t i = 0; i < count; ++i)
    REQUIRE(items[static_cast<size_t>(i)].value() == static_cast<double>(i));
  CHECK(message_of<ShapeError>([&] { PendingItem item(x); }) ==
        "item: expected a tensor of one element, got [5000]");
}

TEST_CASE("another thread can wait for the work of a stream up to a mark") {
  const Device device = Device::cuda();
  const Tensor pinned = Tensor::empty({1}, DType::i64, device, Space::pinned);
  *pinned.data<int64_t>() = 5;
  const Tensor seven = Tensor::full({1}, 7.0, DType::i64, device);
  copy(seven, pinned, device.compute());
  const std::unique_ptr<StreamMark> mark = mark_compute(device);
  REQUIRE(mark);
  std::thread([&] { mark->wait(); }).join();
  CHECK(*pinned.data<int64_t>() == 7);
  CHECK(mark_compute(Device::cpu()) == nullptr);
  CHECK(mark_compute(Device::meta(0, {}, Device::Type::cuda)) == nullptr);
}

TEST_CASE("make_stream reuses streams that are no longer in use") {
  const Device device = Device::cuda(3);
  device.make_stream("first");
  const int streams = cuda::streams_on(3);
  for (int i = 0; i < 100; ++i) device.make_stream("again")->synchronize();
  CHECK(cuda::streams_on(3) == streams);
  CHECK(cuda::hardware_connections() >= streams);
}

namespace {

/// Two ranks sum x twice. Rank 1 launches its second sum late, while rank 0 calls f(device, turn)
/// 20 times.
void call_during_a_collective(const std::function<void(const Device&, int)>& f) {
  const ScopedVariable by_nccl("ZG_CUDA_COMM", "nccl"), late("ZG_EMULATOR_NCCL", "1:2:late");
  run_local(2,
            [&](Communicator& comm, const Device& device) {
              const Tensor x = Tensor::full({5}, 1.0, DType::i64, device);
              comm.wait(comm.all_reduce(x, "first"));
              const auto second = comm.all_reduce(x, "second");
              for (int turn = 0; turn < 20 && comm.rank() == 0; ++turn) {
                f(device, turn);
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
              }
              comm.wait(second);
              if (x.to_host<int64_t>() != std::vector<int64_t>(5, 4)) throw ShapeError("sum");
            },
            {.type = Device::Type::cuda});
}

template <int number>
__global__ void write_number(int* out) {
  *out = number;
}

}  // namespace

TEST_CASE("a rank whose memory grows while NCCL waits for a peer does not stop the peer") {
  std::vector<Tensor> grown;
  call_during_a_collective([&](const Device& device, int) {
    grown.push_back(allocate(device, 3 * one_mib));
    grown.push_back(allocate(device, 3 * one_mib, Space::pinned));
  });
  CHECK(grown.size() == 40);
}

TEST_CASE("a rank that loads a kernel while NCCL waits for a peer does not stop the peer") {
  int numbers = 0;
  call_during_a_collective([&](const Device& device, int turn) {
    const Tensor out = Tensor::empty({}, DType::i32, device);
    [&]<int... number>(std::integer_sequence<int, number...>) {
      const auto launches = [&](int wanted, void (*kernel)(int*)) {
        if (wanted == turn)
          cuda::launch("write_number", kernel, {dim3(1), dim3(1)}, device.compute(),
                       out.data<int>());
      };
      (launches(number, write_number<number>), ...);
    }
    (std::make_integer_sequence<int, 20>());
    numbers += out.to_host<int32_t>()[0];
  });
  CHECK(numbers == 190);
}

TEST_SUITE_END();
