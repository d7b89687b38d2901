#include "zerograd/zero/checkpoint/checkpoint_directory.h"

#include <cmath>
#include <filesystem>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/training_run.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/storage/file_io.h"

using namespace zg;
using namespace zg::testing;
using zero::CheckpointDirectory;
using zero::CheckpointInfo;
using zero::Engine;

namespace {

CheckpointInfo info_with(const Engine& engine, const std::string& loss) {
  return {.steps = engine.steps(), .config_json = "{\"loss\":" + loss + "}"};
}

double loss_of(const CheckpointInfo& info, const std::string&) {
  const std::string text = info.config_json.substr(info.config_json.find(':') + 1);
  return text.starts_with("null") ? NAN : std::stod(text);
}

std::vector<int64_t> saved_steps(const std::string& directory) {
  std::vector<int64_t> steps;
  for (const zero::StepFolder& folder : zero::step_folders(directory))
    steps.push_back(folder.steps);
  return steps;  // the newest first
}

}  // namespace

TEST_CASE("CheckpointDirectory keeps the checkpoints with the lowest losses and the newest one") {
  for (const bool in_background : {false, true}) {
    CAPTURE(in_background);
    const TemporaryFolder folder;
    const std::string path = folder / "save";
    std::vector<std::string> reported;
    run_local(2, [&](Communicator& ranks, const Device& device) {
      const Toy toy;
      Engine engine(toy.store, ranks, device, {.stage = 2});
      CheckpointDirectory checkpoints(
          {.path = path, .keep = 2, .in_background = in_background, .loss_of = loss_of},
          [&](const std::string& step_n, const zero::CheckpointSave::Result& result) {
            if (ranks.rank() == 0 && result.failed_rank < 0) reported.push_back(step_n);
          });
      // null is a loss that is not a number: the worst.
      for (const std::string loss : {"3", "1", "null", "2", "5"}) {
        train_step(engine, static_cast<int>(engine.steps()));
        CHECK(checkpoints.save(engine, info_with(engine, loss)));
        checkpoints.poll();
      }
      CHECK(checkpoints.finish());
    });
    CHECK(saved_steps(path) == std::vector<int64_t>{5, 4, 2});
    CHECK(reported.size() == 5);
    for (const zero::StepFolder& each : zero::step_folders(path))
      CHECK(zero::damages_of(each.path).empty());
  }
}

TEST_CASE(
    "CheckpointDirectory::save reports a failed save without a throw, and a later save succeeds") {
  const TemporaryFolder folder;
  const std::string path = folder / "save";
  const Device device = Device::cpu();
  const Toy toy;
  Engine engine(toy.store, device);
  std::string reason;
  CheckpointDirectory checkpoints(
      {.path = path}, [&](const std::string&, const zero::CheckpointSave::Result& result) {
        reason = result.reason;
      });
  write_file(path, "a file where the directory should be");
  CHECK_FALSE(checkpoints.save(engine, info_with(engine, "1")));
  CHECK(contains(reason, path));
  std::filesystem::remove(path);
  CHECK(checkpoints.save(engine, info_with(engine, "1")));
  CHECK(reason == "");
  CHECK(saved_steps(path) == std::vector<int64_t>{0});
}

TEST_CASE("CheckpointDirectory refuses a keep count without a loss_of function") {
  CHECK(contains(message_of<ConfigError>([] { CheckpointDirectory({.path = "x", .keep = 1}); }),
                 "expected loss_of"));
}

TEST_CASE("DirectoryLock lets only one run at a time write to a checkpoint directory") {
  const TemporaryFolder folder;
  {
    const zero::DirectoryLock lock(folder.path());
    CHECK(lock.warning() == "");
    CHECK_ERROR(ConfigError, "another run is writing to " + folder.path(),
                zero::DirectoryLock(folder.path()));
  }
  const zero::DirectoryLock again(folder.path());
  CHECK(contains(zero::DirectoryLock(folder / "none").warning(), "cannot be locked"));
}

TEST_CASE_FIXTURE(
    ToyEngine, "links in a directory of checkpoints are removed and replaced, but never followed") {
  const std::string path = folder / "save", home = folder / "home";
  zero::save_checkpoint(home, engine, info_with(engine, "9"));
  write_file(home + "/own", "own");
  const auto home_files = [&] {
    std::string found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(home))
      found += entry.path().string() +
               (entry.is_regular_file() ? read_file(entry.path().string()) : "") + "\n";
    return found;
  };
  const std::string before = home_files();
  std::filesystem::create_directories(path);
  for (const auto& [name, target] : std::initializer_list<std::pair<const char*, const char*>>{
           {".unfinished_a", ""},
           {".unfinished_latest", "/own"},
           {".unfinished_step_1", ""},
           {".unfinished_step_0.removed", ""},
           {"latest", "/own"},
           {"step_0", "/step_0"},
           {".unfinished_b", "/nowhere"}})
    std::filesystem::create_symlink(home + target, path + "/" + name);
  std::filesystem::create_hard_link(home + "/own", path + "/.unfinished_c");
  CheckpointDirectory checkpoints({.path = path, .keep = 1, .loss_of = loss_of});
  for (const std::string loss : {"3", "1", "2"}) {  // step_0, whose loss is 9, is removed
    train_step(engine, static_cast<int>(engine.steps()));
    CHECK(checkpoints.save(engine, info_with(engine, loss)));
  }
  CHECK(checkpoints.finish());
  CHECK(saved_steps(path) == std::vector<int64_t>{3, 2});
  CHECK(read_file(path + "/latest") == "step_3");
  CHECK(std::distance(std::filesystem::directory_iterator(path), {}) == 3);
  CHECK(home_files() == before);
}

TEST_CASE_FIXTURE(
    ToyEngine, "a checkpoint that another process writes is left alone, and its step is refused") {
  const std::string unfinished = folder / ".unfinished_step_0";
  std::filesystem::create_directories(unfinished);
  auto other = Folder::open(unfinished);
  REQUIRE(other.has_value());
  REQUIRE(other->lock());
  CHECK_ERROR(FileError, "create: " + unfinished + ": File exists",
              zero::save_checkpoint(folder.path(), engine, info_with(engine, "1")));
  CHECK(std::filesystem::exists(unfinished));
  other.reset();
  zero::save_checkpoint(folder.path(), engine, info_with(engine, "1"));
  CHECK(saved_steps(folder.path()) == std::vector<int64_t>{0});
}
