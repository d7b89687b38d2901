#include <sys/resource.h>

#include <filesystem>
#include <set>

#include "tests/support/checkpoint_churn.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/toy.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"
#include "zerograd/zero/checkpoint/consolidate.h"

// Readers beside a run that saves and removes checkpoints.
using namespace zg;
using namespace zg::testing;
using zero::Engine;
namespace fs = std::filesystem;

namespace {

/// step_1 of two ranks, with a file of its own; returns its hash, which depends on the sample.
std::string save_toy(const std::string& directory, int sample = 0) {
  std::string hash;
  run_local(2, [&](Communicator& comm, const Device& device) {
    const Toy toy;
    Engine engine(toy.store, comm, device, {.stage = 1});
    train_step(engine, sample);
    zero::save_checkpoint(directory, engine, {.steps = 1, .files = {{"notes", "of the run"}}});
    const std::string own = engine.parameter_hash();
    if (comm.rank() == 0) hash = own;
  });
  return hash;
}

}  // namespace

TEST_CASE("an open checkpoint can still be read after its folder is removed or replaced") {
  const TemporaryFolder folder;
  const std::string hash = save_toy(folder.path()), step = folder / "step_1";
  const auto chosen = zero::choose_checkpoint(folder.path());
  const auto opened = zero::CheckpointReader::open(step);
  REQUIRE(opened);
  CHECK(opened->manifest().checksum == chosen->manifest().checksum);
  zero::remove_checkpoint(step);
  CHECK(!fs::exists(step));
  CHECK(zero::CheckpointReader::open(step) == nullptr);
  const Toy toy;
  {  // another one of its name
    Engine other(toy.store, Device::cpu(), {.seed = 5});
    train_step(other, 3);
    zero::save_checkpoint(folder.path(), other, {.steps = 1});
    CHECK(other.parameter_hash() != hash);
  }
  CHECK(chosen->damages().empty());
  CHECK(chosen->info().files.at("notes") == "of the run");
  Engine engine(toy.store, Device::cpu(), {.seed = 9});
  zero::load_checkpoint(*chosen, engine);
  CHECK(engine.parameter_hash() == hash);
  CHECK(zero::consolidate(*opened, folder / "weights", DType::f32) == hash);
  Engine weights(toy.store, Device::cpu(), {.seed = 9});
  zero::load_weights(zero::weights_of(opened), weights);
  CHECK(weights.parameter_hash() == hash);
  opened->close();
  CHECK_ERROR(FileError, step + "/shard_00000.safetensors: was closed",
              opened->read("gain", "master"));
  CHECK_ERROR(FileError, step + "/notes: was closed", opened->info());
}

TEST_CASE("a checkpoint with more shards than the limit of open files can be read") {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "weights", {{"w", DType::f32, {300}}});
    writer.write_floats(std::vector<float>(300, 2.0f));
    writer.finish();
  }
  const std::string hash = zero::split(folder / "weights", folder / "save", {}, 300);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 100;
  REQUIRE(few.rlim_max >= 400);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  CHECK(zero::consolidate(*zero::choose_checkpoint(folder / "save"), folder / "again",
                          DType::f32) == hash);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_CASE("readers choose and load checkpoints without damage while others are saved and removed") {
  const TemporaryFolder folder;
  const std::set<std::string> hashes = {save_toy(folder / "even"), save_toy(folder / "odd", 7)};
  REQUIRE(hashes.size() == 2);
  const CheckpointChurn churn(folder / "even/step_1", folder / "odd/step_1", folder / "save");
  const std::string save = folder / "save";
  const Toy toy;
  const int64_t first = churn.saves();
  for (int round = 0; round < 200 || churn.saves() < first + 200; ++round) {
    CAPTURE(round);
    Engine engine(toy.store, Device::cpu(), {.seed = 9});
    const auto chosen =
        zero::choose_checkpoint(save, [&](const zero::StepFolder& step, const std::string& damage) {
          FAIL("passed over ", step.path, ": ", damage);
        });
    zero::load_checkpoint(*chosen, engine);
    CHECK(hashes.contains(engine.parameter_hash()));
    CHECK(zero::read_checkpoint_info(save).files.size() == 1);
    CHECK(zero::weights_of(save).read("gain").size() == 129);
    zero::load_checkpoint(save, engine);
    CHECK(hashes.contains(engine.parameter_hash()));
    CHECK(hashes.contains(zero::consolidate(save, folder / "weights", DType::f32)));
  }
}

TEST_CASE(
    "choose_checkpoint reports a damaged step once, even while other steps are saved and removed") {
  const TemporaryFolder folder;
  const std::string save = folder / "save";
  save_toy(folder / "original");
  fs::create_directories(save + "/step_1000000");
  write_file(save + "/step_1000000/manifest.json", "{");
  const CheckpointChurn churn(folder / "original/step_1", folder / "original/step_1", save);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> passed;
    const auto chosen = zero::choose_checkpoint(
        save,
        [&](const zero::StepFolder& step, const std::string&) { passed.push_back(step.path); });
    CHECK(passed == std::vector{save + "/step_1000000"});
    CHECK(chosen->path() != passed.front());
  }
}
