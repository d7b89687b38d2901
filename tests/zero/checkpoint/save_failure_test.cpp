#include <filesystem>
#include <mutex>

#include "tests/support/error_message.h"
#include "tests/support/file_limit.h"
#include "tests/support/small_disk.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/training_run.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/zero/checkpoint/checkpoint_save.h"

using namespace zg;
using namespace zg::testing;
using zero::CheckpointSave;
using zero::Engine;
namespace fs = std::filesystem;

namespace {

zero::CheckpointInfo step_info(const Engine& engine) {
  return {.steps = engine.steps(), .skipped = engine.skipped()};
}

CheckpointSave::Result save_now(const std::string& directory, const Engine& engine) {
  return CheckpointSave(directory, engine, step_info(engine)).finish();
}

int64_t entries_of(const std::string& directory) {
  return std::distance(fs::directory_iterator(directory), {});
}

}  // namespace

TEST_CASE(
    "if a save fails on one rank, all ranks learn which one, nothing changes, and a later save "
    "succeeds") {
  constexpr int world = 3;
  for (int failing = 0; failing < world; ++failing) {
    CAPTURE(failing);
    const TemporaryFolder folder;
    write_file(folder / "file", "");
    std::mutex mutex;
    std::string first_hash;
    int told = 0, with_reason = 0;
    run_local(world, [&](Communicator& comm, const Device& device) {
      const Toy toy;
      Engine engine(toy.store, comm, device, {.stage = 2});
      train_step(engine, 0);
      const auto wire = [&] {
        return comm.wire()[static_cast<size_t>(Collective::all_reduce)].bytes;
      };
      const auto of = [&](const std::string& directory) {
        const int64_t before = wire();
        const CheckpointSave::Result result = save_now(directory, engine);
        CHECK(wire() - before == 3 * (world - 1) * world * 8);
        return result;
      };
      CHECK(of(folder.path()).failed_rank == -1);
      train_step(engine, 1);
      // At a path where no directory can be made.
      const bool fails = comm.rank() == failing;
      const CheckpointSave::Result result = of(fails ? folder / "file" : folder.path());
      const std::string hash = engine.parameter_hash();
      const std::lock_guard lock(mutex);
      told += result.failed_rank == failing;
      with_reason += !result.reason.empty();
      if (fails) {
        CHECK(contains(result.reason, folder / "file"));
        CHECK(contains(result.reason, "it needs 4320 bytes in " + (folder / "file") + ", where "));
      }
      if (comm.rank() == 0) first_hash = hash;
    });
    CHECK(told == world);
    CHECK(with_reason == 1);
    CHECK(entries_of(folder.path()) == 3);  // the file, step_1 and latest
    zero::verify_checkpoint(folder / "step_1");

    run_local(world, [&](Communicator& comm, const Device& device) {
      const Toy toy;
      Engine engine(toy.store, comm, device, {.stage = 2});
      zero::load_checkpoint(folder.path(), engine);
      train_step(engine, 1);
      const std::string hash = engine.parameter_hash();
      if (hash != first_hash) throw ShapeError("another outcome");
      CHECK(save_now(folder.path(), engine).failed_rank == -1);
    });
    zero::verify_checkpoint(folder / "step_2");
  }
}

TEST_CASE_FIXTURE(
    ToyEngine, "a save that hits a write error keeps the old checkpoint, and later saves succeed") {
  zero::save_checkpoint(folder.path(), engine, step_info(engine));
  train_step(engine, 0);
  {
    const FileLimit limit(2000);
    const CheckpointSave::Result result = save_now(folder.path(), engine);
    CHECK(result.failed_rank == 0);
    CHECK(contains(result.reason, "shard_00000.safetensors.unfinished: File too large; it needs "));
    CHECK_ERROR(FileError, "save_checkpoint: ",
                zero::save_checkpoint(folder.path(), engine, step_info(engine)));
  }
  CHECK(entries_of(folder.path()) == 2);
  zero::verify_checkpoint(folder / "step_0");
  CHECK(save_now(folder.path(), engine).failed_rank == -1);
  zero::verify_checkpoint(folder / "step_1");
}

TEST_CASE_FIXTURE(ToyEngine, "a save that fails before it writes does not block the next step") {
  const FileLimit limit(2000);  // bytes: less than the shard needs
  CheckpointSave save_now(folder.path(), engine, step_info(engine));
  train_step(engine, 0);
  CHECK(save_now.finish().failed_rank == 0);
  CHECK(entries_of(folder.path()) == 0);
}

TEST_CASE_FIXTURE(
    ToyEngine, "CheckpointSave with read_back reads the written shard before it reports success") {
  // Bytes that this process has read so far.
  const auto bytes_read = [] {
    const std::string io = read_file("/proc/self/io");
    return std::stoll(io.substr(io.find("rchar: ") + 7));
  };
  const auto read_by = [&](bool read_back) {
    const int64_t before = bytes_read();
    CHECK(CheckpointSave(folder.path(), engine, {}, read_back).finish().failed_rank == -1);
    return bytes_read() - before;
  };
  const int64_t without = read_by(false), with = read_by(true);
  const auto shard = fs::file_size(folder / "step_0/shard_00000.safetensors");
  CHECK(with - without >= static_cast<int64_t>(shard));
}

TEST_CASE_FIXTURE(
    ToyEngine, "a save whose folder cannot be renamed to step_N fails and leaves nothing behind") {
  write_file(folder / "step_0", "somebody's file");
  const CheckpointSave::Result result = save_now(folder.path(), engine);
  CHECK(contains(result.reason, "rename: " + (folder / ".unfinished_step_0 to ")));
  CHECK(entries_of(folder.path()) == 1);
  CHECK(read_file(folder / "step_0") == "somebody's file");
}

TEST_CASE_FIXTURE(
    ToyEngine,
    "an unfinished folder that cannot be removed fails the save of its step but not of another "
    "step") {
  SmallDisk disk(1 << 20);
  if (!disk.reason().empty()) return;
  fs::create_directories(disk / ".unfinished_step_0/busy");
  REQUIRE(::mount("zerograd", (disk / ".unfinished_step_0/busy").c_str(), "tmpfs", 0, "") == 0);
  CHECK(
      contains(save_now(disk.path(), engine).reason, "create: " + (disk / ".unfinished_step_0: ")));
  engine.set_steps(1, 0);  // under its other name it only takes disk space
  CHECK(save_now(disk.path(), engine).failed_rank == -1);
  zero::verify_checkpoint(disk / "step_1");
  ::umount2((disk / ".unfinished_step_0/busy").c_str(), MNT_DETACH);
}

TEST_CASE_FIXTURE(
    ToyEngine,
    "a save on a full disk names the needed and the free bytes and keeps the old checkpoint") {
  const SmallDisk disk(20 << 10);
  if (!disk.reason().empty()) return;
  zero::save_checkpoint(disk.path(), engine, step_info(engine));
  train_step(engine, 0);
  // 20 KiB: the first checkpoint has three pages and its name one. One page is left, too little.
  const CheckpointSave::Result small = save_now(disk.path(), engine);
  CHECK(small.reason == "reserve: " + (disk / ".unfinished_step_1") +
                            ": too little space is left; it needs 4320 bytes in " + disk.path() +
                            ", where 4096 are free");
  disk.resize(24 << 10);  // enough for the tensors, but not for the other files
  const CheckpointSave::Result full = save_now(disk.path(), engine);
  CHECK(contains(full.reason, "No space left on device; it needs 4320 bytes in "));
  CHECK(contains(full.reason, "where 8192 are free"));
  CHECK(entries_of(disk.path()) == 2);
  zero::verify_checkpoint(disk / "step_0");
  disk.resize(64 << 10);
  CHECK(save_now(disk.path(), engine).failed_rank == -1);
  zero::verify_checkpoint(disk / "step_1");
}
