#include "runtime/memory.h"

#include <doctest/doctest.h>

#include <sstream>

#include "runtime/error.h"
#include "runtime/tensor.h"

using namespace zg;

TEST_CASE("a planted mebibyte appears in the tracker's table under its purpose and phase") {
  for (const Device& device : {Device::cpu(), Device::meta()}) {
    CAPTURE(device.name());
    {
      PhaseScope phase(device, "forward");
      PurposeScope purpose(device, Purpose::gradient);
      const Tensor planted = Tensor::empty({1 << 18}, DType::f32, device);
      CHECK(device.memory().live() == 1 << 20);
    }
    CHECK(device.memory().live() == 0);
    const auto rows = device.memory().rows();
    REQUIRE(rows.size() == 1);
    CHECK(rows[0].phase == "forward");
    CHECK(rows[0].live[static_cast<size_t>(Purpose::gradient)] == 1 << 20);
    CHECK(rows[0].peak == 1 << 20);
    CHECK(rows[0].reserved == 2 << 20);
    std::ostringstream table;
    device.memory().print(table);
    CHECK(table.str().find("| forward | device | 0.00 | 1.00 | 0.00 | 0.00 | 0.00 | 0.00 | 1.00 | "
                           "2.00 |") != std::string::npos);
  }
}

TEST_CASE("a cap refuses with the itemised table and leaves the books as they were") {
  const Device device = Device::cpu(0, {.memory_limit = int64_t{8} << 20});
  const Tensor held = Tensor::empty({6 << 20}, DType::u8, device);
  try {
    const PhaseScope phase(device, "forward");
    const NameScope outer(device, "block.1"), inner(device, "block.1 values");
    { const NameScope ended(device, "block.0"); }
    Tensor::empty({3 << 20}, DType::u8, device);
    FAIL("expected OutOfMemory");
  } catch (const OutOfMemory& error) {
    const std::string message = error.what();
    CHECK(message.find("3.00 MiB (3145728 bytes) of activation for block.1 values on cpu:0 "
                       "(device) in phase forward") != std::string::npos);
    CHECK(message.find("activation 6.00 MiB") != std::string::npos);
    CHECK(message.find("cpu:0") != std::string::npos);
  }
  CHECK(device.memory().live() == 6 << 20);
}

TEST_CASE("freed neighbours merge and the best fit is reused at the lowest offset") {
  const Device device = Device::cpu();
  std::vector<Tensor> tensors;
  for (int i = 0; i < 8; ++i) tensors.push_back(Tensor::empty({1 << 20}, DType::u8, device));
  const std::byte* second = tensors[1].raw();
  tensors[1] = {};
  tensors[2] = {};
  tensors[6] = {};
  CHECK(Tensor::empty({2 << 20}, DType::u8, device).raw() == second);
  CHECK(device.memory().reserved() == 8 << 20);
}

TEST_CASE("what is reserved reaches to the highest live byte, and its peak restarts there") {
  constexpr int64_t mebibyte = 1 << 20;
  const auto bytes = [](const Device& device, int64_t mebibytes) {
    return Tensor::empty({mebibytes * mebibyte}, DType::u8, device);
  };
  for (const Device& device : {Device::cpu(), Device::meta()}) {
    CAPTURE(device.name());
    const MemoryTracker& memory = device.memory();
    Tensor low = bytes(device, 3), middle = bytes(device, 4), high;
    {
      PhaseScope phase(device, "forward");
      high = bytes(device, 6);
    }
    CHECK(memory.reserved() == 14 * mebibyte);  // 13, in steps of 2
    middle = {};
    CHECK(memory.reserved() == 14 * mebibyte);  // the hole is below what is live
    {
      PhaseScope phase(device, "backward");
      const Tensor in_the_hole = bytes(device, 4);
      CHECK(memory.reserved() == 14 * mebibyte);
    }
    high = {};
    CHECK(memory.reserved() == 4 * mebibyte);
    CHECK(memory.peak_reserved() == 14 * mebibyte);
    CHECK(memory.peak_phase() == "forward");
    device.memory().reset_peaks();
    CHECK(memory.peak_reserved() == 4 * mebibyte);
    // The top sank below the hole, so nothing is left of it.
    middle = bytes(device, 5);
    CHECK(memory.peak_reserved() == 8 * mebibyte);
    CHECK(memory.peak_phase() == "outside");
  }
}

TEST_CASE("what is live when a phase begins belongs to its peak") {
  const Device device = Device::cpu();
  Tensor held = Tensor::empty({1 << 20}, DType::u8, device);
  const PhaseScope phase(device, "step");
  held = {};
  const Tensor small = Tensor::empty({1 << 10}, DType::u8, device);
  CHECK(device.memory().rows().back().phase == "step");
  CHECK(device.memory().rows().back().peak == 1 << 20);
}
