#include "zerograd/runtime/storage/swap.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <tuple>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/file_limit.h"
#include "tests/support/temporary_folder.h"

using namespace zg;
using namespace zg::testing;

namespace {

Device device_on(const std::string& directory, int64_t block_size = 1 << 20, int depth = 8,
                 bool io_uring = true) {
  return Device::cpu(0, {.swap = {.directory = directory,
                                  .block_size = block_size,
                                  .queue_depth = depth,
                                  .io_uring = io_uring}});
}

Tensor swapped_tensor(const Device& device, int64_t numel) {
  return Tensor::empty({numel}, DType::u8, device, Space::file);
}

std::vector<uint8_t> random_bytes(std::mt19937& random, int64_t count) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

/// The path in /proc of the open file of this process that is in the directory and has no name
/// there; "": none.
std::string unnamed_file_in(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with(directory) && target.ends_with(" (deleted)")) return entry.path();
  }
  return "";
}

/// Writes the byte 1 to that file at offset `at`, not through the device.
void damage(const std::string& directory, off_t at) {
  const std::string path = unnamed_file_in(directory);
  REQUIRE(!path.empty());
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(opened >= 0);
  const uint8_t one = 1;
  REQUIRE(pwrite(opened, &one, 1, at) == 1);
  REQUIRE(fsync(opened) == 0);
  close(opened);
}

}  // namespace

TEST_CASE(
    "any range of a swapped tensor reads back as last written, for any block size and queue "
    "depth") {
  const TemporaryFolder folder;
  for (const auto& [block_size, depth, io_uring] : {std::tuple<int64_t, int, bool>(4096, 1, true),
                                                    {8192, 3, true},
                                                    {8192, 5, false},
                                                    {1 << 20, 8, true}}) {
    const Device device = device_on(folder.path(), block_size, depth, io_uring);
    constexpr int64_t size = 100'003;
    const Tensor first = swapped_tensor(device, 5), file = swapped_tensor(device, size);
    fill_zero(file, device.compute());
    std::vector<uint8_t> expected(size, 0);
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
      const auto begin = static_cast<int64_t>(random() % size);
      const auto count = static_cast<int64_t>(random() % static_cast<uint64_t>(size - begin)) + 1;
      const std::vector<uint8_t> bytes = random_bytes(random, count);
      copy(Tensor::from(bytes, {count}, device), file.flat(begin, count), device.compute());
      std::ranges::copy(bytes, expected.begin() + begin);
    }
    const Tensor memory = Tensor::empty({size}, DType::u8, device);
    copy(file, memory, device.compute());
    CHECK(memory.to_host<uint8_t>() == expected);
    const Tensor middle = Tensor::empty({4097}, DType::u8, device);
    copy(file.flat(4095, 4097), middle, device.compute());
    CHECK(middle.to_host<uint8_t>() ==
          std::vector<uint8_t>(expected.begin() + 4095, expected.begin() + 4095 + 4097));
  }
}

TEST_CASE(
    "swap_description says how a drive is read, and swapping works where direct I/O may not") {
  CHECK(swap_description(Device::cpu()).empty());
  const Device direct = device_on("/tmp"), buffered = device_on("/dev/shm");
  const Tensor first = swapped_tensor(direct, 5000), second = swapped_tensor(buffered, 5000);
  CHECK(!swap_description(direct).empty());
  // /dev/shm is a tmpfs, a file system in memory. It supports direct I/O from Linux 6.5 on.
  const Tensor memory = Tensor::from(std::vector<uint8_t>(5000, 7), {5000}, buffered);
  copy(memory, second, buffered.compute());
  const Tensor back = Tensor::empty({5000}, DType::u8, buffered);
  copy(second, back, buffered.compute());
  CHECK(back.to_host<uint8_t>() == memory.to_host<uint8_t>());
}

TEST_CASE(
    "swap transfers that overlap on the drive or in memory give the result of their call order") {
  const TemporaryFolder folder;
  constexpr int64_t size = 150'000;
  for (const auto& [block_size, depth, io_uring] :
       {std::tuple<int64_t, int, bool>(4096, 8, true), {16384, 3, false}, {1 << 20, 8, true}}) {
    const Device device = device_on(folder.path(), block_size, depth, io_uring);
    const Tensor file = swapped_tensor(device, size),
                 memory = Tensor::empty({size}, DType::u8, device);
    std::mt19937 random(11);
    std::vector<uint8_t> on_disk(size, 0), in_memory = random_bytes(random, size);
    fill_zero(file, device.compute());
    copy(Tensor::from(in_memory, {size}, device), memory, device.compute());
    SwapTicket last;
    for (int i = 0; i < 2000; ++i) {
      const bool ahead = random() % 2;
      // Half of the transfers are whole, aligned blocks, which need no buffer.
      const int64_t grain = random() % 2 ? 4096 : 1;
      const auto draw = [&](int64_t most) {
        return static_cast<int64_t>(random() % static_cast<uint64_t>(most / grain + 1)) * grain;
      };
      const int64_t count = std::max(grain, draw(20'000));
      const int64_t place = draw(size - count), from = draw(size - count);
      if (random() % 2) {
        last.add(start_swap(memory.flat(from, count), file.flat(place, count), {}, ahead));
        std::copy_n(in_memory.begin() + from, count, on_disk.begin() + place);
      } else {
        last.add(start_swap(file.flat(place, count), memory.flat(from, count), {}, ahead));
        std::copy_n(on_disk.begin() + place, count, in_memory.begin() + from);
      }
    }
    wait_for_swap(device, last);
    CHECK(memory.to_host<uint8_t>() == in_memory);
    copy(file, memory, device.compute());
    CHECK(memory.to_host<uint8_t>() == on_disk);
  }
}

TEST_CASE("a swap transfer ahead is done before those in the queue, unless they touch its bytes") {
  const TemporaryFolder folder;
  const Device device = device_on(folder.path(), 4096, 1);
  constexpr int64_t size = 8 << 20;
  const Tensor file = swapped_tensor(device, size + 4096),
               memory = Tensor::empty({size}, DType::u8, device),
               other = Tensor::empty({4096}, DType::u8, device);
  fill_zero(file, device.compute());
  const auto overtakes = [&](int64_t place, const Tensor& into, int attempts) {
    for (int i = 0; i < attempts; ++i) {
      SwapTicket queued = start_swap(memory, file.flat(0, size));
      queued.add(start_swap(file.flat(0, size), memory));
      wait_for_swap(device, start_swap(file.flat(place, 4096), into, {}, /*ahead=*/true));
      const bool overtook = !is_swapped(device, queued);
      wait_for_swap(device, queued);
      if (overtook) return true;
    }
    return false;
  };
  CHECK(overtakes(size, other, 50));
  CHECK(!overtakes(size - 4096, other, 3));
  CHECK(!overtakes(size, memory.flat(size - 4096, 4096), 3));
}

TEST_CASE(
    "every wait for a swap throws FileError after the drive fails, with many transfers queued") {
  const TemporaryFolder folder;
  for (const bool io_uring : {true, false}) {
    const Device device = device_on(folder.path(), 4096, 4, io_uring);
    constexpr int64_t size = 1 << 20;
    const Tensor file = swapped_tensor(device, size),
                 memory = Tensor::empty({size}, DType::u8, device);
    fill_zero(file, device.compute());
    REQUIRE(truncate(unnamed_file_in(folder.path()).c_str(), size / 2) == 0);
    SwapTicket first = start_swap(file, memory), last = start_swap(file, memory);
    CHECK_ERROR(FileError, "cannot be read", wait_for_swap(device, last));
    CHECK_THROWS_AS(wait_for_swap(device, first), FileError);
    CHECK_THROWS_AS(copy(memory.flat(0, 5), file.flat(0, 5), device.compute()), FileError);
  }
}

TEST_CASE(
    "a byte that changed on the drive is an error that names its block, and later reads fail") {
  const TemporaryFolder folder;
  const Device device = device_on(folder.path());
  const Tensor file = swapped_tensor(device, 20'000),
               memory = Tensor::empty({20'000}, DType::u8, device);
  fill_zero(file, device.compute());
  CHECK(std::filesystem::is_empty(folder.path()));
  damage(folder.path(), 9000);
  CHECK_ERROR(FileError, "the block at byte 8192 is not what was written there",
              copy(file, memory, device.compute()));
  CHECK_THROWS_AS(copy(file.flat(0, 16), memory.flat(0, 16), device.compute()), FileError);
}

TEST_CASE(
    "a changed byte is found when its block is read and when a write fills part of its block") {
  const TemporaryFolder folder;
  for (const bool reads : {true, false}) {
    const Device device = device_on(folder.path());
    constexpr int64_t size = 4 * 4096;
    const Tensor file = swapped_tensor(device, size),
                 memory = Tensor::empty({size}, DType::u8, device);
    fill_zero(file, device.compute());
    damage(folder.path(), 9000);
    // reads: blocks are read directly to memory. Otherwise 10 bytes are written, and their block is
    // read first for the bytes around them.
    const Tensor from = reads ? file : memory.flat(0, 10);
    const Tensor to = reads ? memory : file.flat(8200, 10);
    CHECK_ERROR(FileError, "the block at byte 8192 is not what was written there",
                copy(from, to, device.compute()));
  }
}

TEST_CASE("a drive that refuses a write causes a FileError, and later reads fail") {
  const TemporaryFolder folder;
  for (const bool io_uring : {true, false}) {
    const Device device = device_on(folder.path(), 4096, 4, io_uring);
    constexpr int64_t size = 1 << 16;
    const Tensor file = swapped_tensor(device, size),
                 memory = Tensor::empty({size}, DType::u8, device);
    fill_zero(file, device.compute());
    const FileLimit limit(size / 2);
    CHECK_ERROR(FileError, "cannot be written: File too large",
                copy(memory, file, device.compute()));
    CHECK_THROWS_AS(copy(file.flat(0, 16), memory.flat(0, 16), device.compute()), FileError);
  }
}

TEST_CASE(
    "too little room on the drive or a missing directory is an error when a tensor is allocated") {
  const TemporaryFolder folder;
  const Device device = device_on(folder.path());
  const Tensor kept = swapped_tensor(device, 4096);
  CHECK_ERROR(FileError, "has no room", swapped_tensor(device, int64_t{1} << 50));
  CHECK(device.memory().live(Space::file) == 4096);
  CHECK_ERROR(FileError, "none", swapped_tensor(device_on(folder / "none"), 1));
  CHECK_ERROR(ConfigError, "--nvme-path", swapped_tensor(Device::cpu(), 1));
}

TEST_CASE("a meta device counts the same bytes swapped to and from a drive as a real device") {
  const TemporaryFolder folder;
  for (const Device& device : {device_on(folder.path()), Device::meta()}) {
    const Tensor file = swapped_tensor(device, 10'000),
                 memory = Tensor::empty({10'000}, DType::u8, device);
    copy(memory, file, device.compute());
    copy(file.flat(4000, 200), memory.flat(0, 200), device.compute());
    CHECK(swapped(device).written == 3 * 4096);
    CHECK(swapped(device).read == 2 * 4096);
    CHECK(device.memory().live(Space::file) == 3 * 4096);
  }
}
