#include "zerograd/runtime/memory.h"

#include <cstdio>
#include <cstring>
#include <limits>
#include <sstream>

#include "tests/support/error_message.h"
#include "tests/support/own_process.h"
#include "zerograd/runtime/memory_blocks.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/tensor.h"
#include "zerograd/runtime/text/format.h"

using namespace zg;

TEST_CASE("an allocation of 1 MiB appears in the memory table under its purpose and phase") {
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

TEST_CASE(
    "an allocation above memory_limit throws OutOfMemory with a table and changes no live bytes") {
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

TEST_CASE("a record of blocks has the name, address, phase, allocation and free of each") {
  const Device device = Device::meta();
  const auto bytes = [&](const char* name, int64_t count) {
    const NameScope scope(device, name);
    return Tensor::empty({count}, DType::u8, device);
  };
  BlockRecord record(device);
  const Tensor kept = bytes("kept", 100);
  Tensor freed = bytes("freed", 256);
  bytes("gone", 1);
  record.restart();
  {
    const PhaseScope phase(device, "forward");
    const PurposeScope purpose(device, Purpose::gradient);
    bytes("short", 1000);
    freed = {};
  }
  const MemoryBlocks got = record.recorded();
  CHECK(got.events == 3);
  const auto row = [](const MemoryBlock& block) {
    return fmt::format("{} {}+{} {} in {}, {} to {}", block.name, block.offset, block.bytes,
                       name_of(block.purpose), block.phase, block.begin,
                       block.end == INT64_MAX ? -1 : block.end);
  };
  REQUIRE(got.blocks.size() == 3);
  CHECK(row(got.blocks[0]) == "kept 0+256 activation in outside, -1 to -1");
  CHECK(row(got.blocks[1]) == "freed 256+256 activation in outside, -1 to 2");
  CHECK(row(got.blocks[2]) == "short 512+1024 gradient in forward, 0 to 1");
  REQUIRE(got.phases.size() == 2);
  CHECK(got.phases[0].name == "forward");
  CHECK(got.phases[0].begin == 0);
  CHECK(got.phases[1].name == "outside");
  CHECK(got.phases[1].begin == 3);
  BlockRecord few(device, 1);
  const Tensor first = bytes("first", 1), second = bytes("second", 1);
  REQUIRE(few.recorded().blocks.size() == 1);
  CHECK(few.recorded().blocks[0].name == "first");
}

TEST_CASE(
    "adjacent free blocks merge, and an allocation reuses the best fit at the lowest offset") {
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

TEST_CASE(
    "reserved memory ends at the highest live byte, and reset_peaks restarts its peak there") {
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

TEST_CASE("memory that is live when a phase begins counts in the phase's peak") {
  const Device device = Device::cpu();
  Tensor held = Tensor::empty({1 << 20}, DType::u8, device);
  const PhaseScope phase(device, "step");
  held = {};
  const Tensor small = Tensor::empty({1 << 10}, DType::u8, device);
  CHECK(device.memory().rows().back().phase == "step");
  CHECK(device.memory().rows().back().peak == 1 << 20);
}

// A limit on addresses cannot be lifted again: what has one is a process of its own.
TEST_CASE("ranges and sums of sizes that pass 2^63 are refused, also in a plan") {
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  const Tensor five = Tensor::zeros({5}, DType::f32, Device::cpu());
  CHECK_THROWS_AS(five.alias(most - 3, {4}, DType::f32), ShapeError);
  CHECK_THROWS_AS(five.alias(4, {5}, DType::f32), ShapeError);
  CHECK(five.alias(4, {4}, DType::f32).numel() == 4);
  CHECK(five.alias(20, {0}, DType::f32).numel() == 0);
  CHECK_THROWS_AS(five.flat(most, 5), ShapeError);
  CHECK_THROWS_AS(five.flat(5, most), ShapeError);
  CHECK_THROWS_AS(five.view({(int64_t{1} << 62) + 1, 4}), ShapeError);
  CHECK(five.flat(5, 0).numel() == 0);
  const Device meta = Device::meta();
  const int64_t third = (int64_t{1} << 62) / 3 / 8;  // elements
  const Tensor first = Tensor::empty({third}, DType::f64, meta);
  const Tensor second = Tensor::empty({third}, DType::f64, meta);
  const std::string message = testing::message_of<OutOfMemory>([&] {
    Tensor::empty({third / 2 + 1, 2}, DType::f64, meta);
  });
  CHECK_MESSAGE(testing::contains(message, "expected less than 4398046511104.00 MiB in all"),
                message);
  CHECK_THROWS_AS(Tensor::empty({most / 8}, DType::f64, meta), OutOfMemory);
  CHECK(meta.memory().live() >= 16 * third);
  const auto take = [](Communicator&, const Device& device) {
    const Tensor all = Tensor::empty({most / 8}, DType::f64, device);
  };
  CHECK_THROWS_AS(plan_ranks(1, take), OutOfMemory);
}

TEST_CASE("arenas under a limit on addresses: run by the next test" * doctest::skip()) {
  constexpr int64_t mebibyte = 1 << 20;
  std::vector<Device> devices;
  std::vector<Tensor> first, second;
  // Arenas of several devices and spaces grow in turns; each stays one range.
  for (int i = 0; i < 6; ++i) devices.push_back(Device::cpu(i));
  const auto fill = [&](std::vector<Tensor>& tensors, int64_t mebibytes) {
    for (const Device& device : devices)
      for (const Space space : {Space::device, Space::host}) {
        tensors.push_back(Tensor::empty({mebibytes * mebibyte}, DType::u8, device, space));
        std::memset(tensors.back().raw(), static_cast<int>(tensors.size()),
                    static_cast<size_t>(tensors.back().bytes()));
      }
  };
  fill(first, 3);
  fill(second, 9);
  for (size_t i = 0; i < first.size(); ++i) {
    CAPTURE(i);
    CHECK(second[i].raw() == first[i].raw() + 3 * mebibyte);
    for (const Tensor& tensor : {first[i], second[i]})
      for (const int64_t at : {int64_t{0}, tensor.bytes() - 1})
        CHECK(static_cast<int>(tensor.raw()[at]) == static_cast<int>(i) + 1);
  }
  const std::string refused = zg::testing::message_of<OutOfMemory>(
      [&] { Tensor::empty({3000 * mebibyte}, DType::u8, devices[0]); });
  CHECK(zg::testing::contains(refused, "allocate: 3000.00 MiB"));
  CHECK(zg::testing::contains(refused, "; `ulimit -v` allows this process 1048576000 bytes"));
  CHECK(devices[0].memory().reserved() == 12 * mebibyte);
  first.clear();
  second.clear();
  CHECK(Tensor::empty({500 * mebibyte}, DType::u8, devices[3]).raw());
}

TEST_CASE("arenas grow in place under `ulimit -v`, and end with OutOfMemory at the limit") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::printf("SKIPPED: a sanitizer maps more addresses than any limit leaves\n");
#else
  const zg::testing::EndedTest ended = zg::testing::end_of_own_test(zg::testing::start_own_test(
      "arenas under a limit on addresses: run by the next test", "ulimit -v 1024000 && exec"));
  CAPTURE(ended.text);
  CHECK(ended.status == 0);
  CHECK(zg::testing::contains(ended.text, "1 passed"));
#endif
}
