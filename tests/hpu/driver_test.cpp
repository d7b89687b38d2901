// The test driver through Debian's loader: what it says of itself, memory, lists, events, modules.
#include <doctest/doctest.h>

#include <array>
#include <numeric>

#include "tests/hpu/level_zero.h"

using namespace zg::test;

TEST_CASE("the driver says that it is none of an accelerator") {
  LevelZero l0;
  ze_device_properties_t properties = {};
  properties.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES;
  ZG_CHECK_ZE(zeDeviceGetProperties(l0.device, &properties));
  CHECK(std::string(properties.name) == "zerograd test driver (CPU), not an accelerator");
  CHECK(properties.type == ZE_DEVICE_TYPE_CPU);
  CHECK(zeInit(ZE_INIT_FLAG_GPU_ONLY) == ZE_RESULT_ERROR_UNINITIALIZED);
}

TEST_CASE("a kernel runs, and what it is given is copied when it is appended") {
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
