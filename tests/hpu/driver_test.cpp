// The test driver through Debian's loader: its properties, memory, lists, events and modules.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "tests/hpu/level_zero.h"

using namespace zg::test;

TEST_CASE("the driver reports that it is not the driver of an accelerator") {
  LevelZero l0;
  ze_device_properties_t properties = {};
  properties.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
  ZG_CHECK_ZE(zeDeviceGetProperties(l0.device, &properties));
  CHECK(std::string(properties.name) == "zerograd test driver (CPU), not an accelerator");
  CHECK(properties.type == ZE_DEVICE_TYPE_CPU);
  CHECK(zeInit(ZE_INIT_FLAG_GPU_ONLY) == ZE_RESULT_ERROR_UNINITIALIZED);
}

TEST_CASE("a kernel's arguments are copied when its launch is appended") {
  LevelZero l0;
  const auto kernel = l0.kernel(l0.module("planted"), "fill");
  constexpr uint32_t groups = 3, items = 40;
  int* const out = static_cast<int*>(l0.allocate(groups * items * sizeof(int)));
  launch(l0, kernel, groups, items, out, 7);
  set_argument(kernel, 1, 8);  // for a launch that never comes
  CHECK(l0.download(out, groups * items) == std::vector<int>(groups * items, 7));
}

TEST_CASE("dependent commands with barriers give one result") {
  LevelZero l0;
  const auto module = l0.module("planted");
  const auto fill = l0.kernel(module, "fill"), add = l0.kernel(module, "add");
  constexpr uint32_t count = 256;
  int* const a = static_cast<int*>(l0.allocate(count * sizeof(int)));
  int* const b = static_cast<int*>(l0.allocate(count * sizeof(int)));
  launch(l0, fill, 4, count / 4, a, 1);
  for (int i = 0; i < 10; ++i) {
    launch(l0, add, 4, count / 4, b, a, 1);
    launch(l0, add, 4, count / 4, a, b, 2);
  }
  CHECK(l0.download(a, count) == std::vector<int>(count, 31));
}

TEST_CASE(
    "memory reports its owner and its range, and an allocation that is too large is refused") {
  LevelZero l0;
  std::byte* const p = static_cast<std::byte*>(l0.allocate(1000));
  ze_memory_allocation_properties_t properties = {};
  properties.stype = ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES;
  ze_device_handle_t owner = nullptr;
  ZG_CHECK_ZE(zeMemGetAllocProperties(l0.context, p + 999, &properties, &owner));
  CHECK(properties.type == ZE_MEMORY_TYPE_DEVICE);
  CHECK(owner == l0.device);
  void* begin = nullptr;
  size_t bytes = 0;
  ZG_CHECK_ZE(zeMemGetAddressRange(l0.context, p + 500, &begin, &bytes));
  CHECK(begin == p);
  CHECK(bytes == 1000);
  int mine = 0;
  ZG_CHECK_ZE(zeMemGetAllocProperties(l0.context, &mine, &properties, &owner));
  CHECK(properties.type == ZE_MEMORY_TYPE_UNKNOWN);
  ze_device_mem_alloc_desc_t description = {};
  description.stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC;
  constexpr size_t most_of_it = size_t{2} << 30;  // all that a device has is 2 GiB, some is taken
  void* too_much = nullptr;
  CHECK(zeMemAllocDevice(l0.context, &description, most_of_it, 64, l0.device, &too_much) ==
        ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
}

TEST_CASE("new memory holds NaN, on the device and on the host") {
  LevelZero l0;
  constexpr size_t count = 100;
  const auto got =
      l0.download(static_cast<const float*>(l0.allocate(count * sizeof(float))), count);
  const auto* const host = static_cast<const float*>(l0.allocate_host(count * sizeof(float)));
  for (size_t i = 0; i < count; ++i) {
    CHECK(got[i] != got[i]);
    CHECK(host[i] != host[i]);
  }
}

TEST_CASE("a module can be built from its native binary, and from no other bytes") {
  LevelZero l0;
  const auto module = l0.module("planted");
  size_t bytes = 0;
  ZG_CHECK_ZE(zeModuleGetNativeBinary(module, &bytes, nullptr));
  std::vector<uint8_t> native(bytes);
  ZG_CHECK_ZE(zeModuleGetNativeBinary(module, &bytes, native.data()));
  ze_module_desc_t description = {};
  description.stype = ZE_STRUCTURE_TYPE_MODULE_DESC;
  description.format = ZE_MODULE_FORMAT_NATIVE;
  description.inputSize = native.size();
  description.pInputModule = native.data();
  ze_module_handle_t again = nullptr;
  ZG_CHECK_ZE(zeModuleCreate(l0.context, l0.device, &description, &again, nullptr));
  constexpr uint32_t count = 64;
  int* const out = static_cast<int*>(l0.allocate(count * sizeof(int)));
  launch(l0, l0.kernel(again, "fill"), 1, count, out, 9);
  CHECK(l0.download(out, count) == std::vector<int>(count, 9));
  native[3] ^= 1;  // looks like a binary of another driver
  ze_module_handle_t other = nullptr;
  CHECK(zeModuleCreate(l0.context, l0.device, &description, &other, nullptr) ==
        ZE_RESULT_ERROR_INVALID_NATIVE_BINARY);
  native[3] ^= 1;
  description.inputSize = 80;  // cut off
  CHECK(zeModuleCreate(l0.context, l0.device, &description, &other, nullptr) ==
        ZE_RESULT_ERROR_INVALID_NATIVE_BINARY);
}

TEST_CASE("divisions are correctly rounded only in a module that is built with the flag") {
  LevelZero l0;
  constexpr uint32_t count = 512, row = 17;  // builtins.cl: v / 3.0f
  std::vector<float> x(count), expected(count);
  for (uint32_t i = 0; i < count; ++i) {
    x[i] = 1.0f + static_cast<float>(i);
    expected[i] = x[i] / 3.0f;
  }
  const float* const in = l0.upload<float>(std::span<const float>(x));
  const auto quotients = [&](const char* flags) {
    auto* const out = static_cast<float*>(l0.allocate(27 * count * sizeof(float)));
    launch(l0, l0.kernel(l0.module("builtins", flags), "floats"), 1, count, out, in, in);
    return l0.download(out + row * count, count);
  };
  CHECK(quotients(LevelZero::rounded) == expected);
  CHECK(quotients(nullptr) != expected);
  CHECK(quotients("-ze-opt-greater-than-4GB-buffer-required") != expected);
}

TEST_CASE("a list with the flag of order runs commands as they were appended, without barriers") {
  LevelZero l0;
  ze_command_queue_desc_t wanted = {};
  wanted.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC;
  wanted.mode = ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
  wanted.flags = 2;  // ZE_COMMAND_QUEUE_FLAG_IN_ORDER of specification 1.7
  ze_command_list_handle_t ordered = nullptr;
  const ze_result_t made = zeCommandListCreateImmediate(l0.context, l0.device, &wanted, &ordered);
  if (std::getenv("ZE_ENABLE_PARAMETER_VALIDATION")) {  // of the loader, which knows 1.4
    CHECK(made == ZE_RESULT_ERROR_INVALID_ENUMERATION);
    return;
  }
  ZG_CHECK_ZE(made);
  std::swap(l0.list, ordered);
  uint8_t* const p = static_cast<uint8_t*>(l0.allocate(64));
  for (uint8_t i = 0; i < 20; ++i)
    ZG_CHECK_ZE(zeCommandListAppendMemoryFill(l0.list, p, &i, 1, 64, nullptr, 0, nullptr));
  CHECK(l0.download(p, 64) == std::vector<uint8_t>(64, 19));
  ZG_CHECK_ZE(zeCommandListDestroy(ordered));
}

TEST_CASE("timestamps of kernels follow each other, modulo their valid bits") {
  LevelZero l0;
  ze_device_properties_t properties = {};
  properties.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
  ZG_CHECK_ZE(zeDeviceGetProperties(l0.device, &properties));
  CHECK(properties.timerResolution == 52);  // nanoseconds of a tick
  const uint64_t mask = (uint64_t{1} << properties.kernelTimestampValidBits) - 1;
  uint64_t last = 0;
  for (int i = 0; i < 5; ++i) {
    l0.wait();
    ze_kernel_timestamp_result_t stamp = {};
    ZG_CHECK_ZE(zeEventQueryKernelTimestamp(l0.done, &stamp));
    CHECK(stamp.global.kernelStart <= mask);
    CHECK(((stamp.global.kernelEnd - stamp.global.kernelStart) & mask) < mask / 2);
    if (i) CHECK(((stamp.global.kernelStart - last) & mask) < mask / 2);
    last = stamp.global.kernelEnd;
  }
}

TEST_CASE("a host that polls an event makes progress") {
  LevelZero l0;
  int* const out = static_cast<int*>(l0.allocate(64 * sizeof(int)));
  launch(l0, l0.kernel(l0.module("planted"), "fill"), 1, 64, out, 9);
  ZG_CHECK_ZE(zeCommandListAppendBarrier(l0.list, l0.done, 0, nullptr));
  int asked = 1;
  while (zeEventQueryStatus(l0.done) == ZE_RESULT_NOT_READY && asked < 10) ++asked;
  CHECK(asked <= 3);
  CHECK(zeEventHostSynchronize(l0.done, 0) == ZE_RESULT_SUCCESS);
}

TEST_CASE("a wait with a timeout returns without the event") {
  LevelZero l0;
  CHECK(zeEventHostSynchronize(l0.done, 1000) == ZE_RESULT_NOT_READY);
}

TEST_CASE("threads that use different devices do not disturb each other") {
  constexpr uint32_t count = 512;
  std::array<std::vector<int>, 2> got;
  std::vector<std::thread> threads;
  for (uint32_t d = 0; d < 2; ++d) {
    threads.emplace_back([&, d] {
      LevelZero l0(d);
      const auto module = l0.module("planted");
      const auto fill = l0.kernel(module, "fill"), add = l0.kernel(module, "add");
      int* const a = static_cast<int*>(l0.allocate(count * sizeof(int)));
      launch(l0, fill, 8, count / 8, a, static_cast<int>(d));
      for (int i = 0; i < 50; ++i) {
        launch(l0, add, 8, count / 8, a, a, 2);
        if (i % 7 == 0) l0.wait();
      }
      got[d] = l0.download(a, count);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(got[0] == std::vector<int>(count, 100));
  CHECK(got[1] == std::vector<int>(count, 101));
}

TEST_CASE("one thread waits for an event that another signals") {
  LevelZero l0;
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ZG_CHECK_ZE(zeEventHostSignal(l0.done));
  });
  CHECK(zeEventHostSynchronize(l0.done, UINT64_MAX) == ZE_RESULT_SUCCESS);
  other.join();
}

TEST_CASE(
    "a closed command list runs when a queue executes it, and its barriers order the commands") {
  LevelZero l0;
  ze_command_queue_desc_t of_queue = {};
  of_queue.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC;
  ze_command_queue_handle_t queue;
  ZG_CHECK_ZE(zeCommandQueueCreate(l0.context, l0.device, &of_queue, &queue));
  ze_command_list_desc_t of_list = {};
  of_list.stype = ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC;
  ze_command_list_handle_t list;
  ZG_CHECK_ZE(zeCommandListCreate(l0.context, l0.device, &of_list, &list));
  constexpr size_t bytes = 256;
  auto* const p = static_cast<uint8_t*>(l0.allocate(bytes));
  const uint8_t one = 1, two = 2;
  ZG_CHECK_ZE(zeCommandListAppendMemoryFill(list, p, &one, 1, bytes, nullptr, 0, nullptr));
  ZG_CHECK_ZE(zeCommandListAppendBarrier(list, nullptr, 0, nullptr));
  ZG_CHECK_ZE(zeCommandListAppendMemoryFill(list, p, &two, 1, bytes / 2, nullptr, 0, nullptr));
  CHECK(zeCommandQueueExecuteCommandLists(queue, 1, &list, nullptr) ==
        ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE);  // it is open
  ZG_CHECK_ZE(zeCommandListClose(list));
  ZG_CHECK_ZE(zeCommandQueueExecuteCommandLists(queue, 1, &list, nullptr));
  ZG_CHECK_ZE(zeCommandQueueSynchronize(queue, UINT64_MAX));
  const auto got = l0.download(p, bytes);
  for (size_t i = 0; i < bytes; ++i) CHECK(got[i] == (i < bytes / 2 ? two : one));
  ZG_CHECK_ZE(zeCommandListDestroy(list));
  ZG_CHECK_ZE(zeCommandQueueDestroy(queue));
}
