#include <filesystem>
#include <map>
#include <set>

#include "tests/support/cover.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/training_run.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/safetensors.h"

using namespace zg;
using namespace zg::testing;
using zero::Engine;

namespace {

constexpr int last = 5;

struct Layout {
  int ranks, stage;
};

/// Trains the toy on the layout, from a checkpoint when there is one, and leaves one at the end.
TrainingOutcome train_part(const Layout& layout, int first, int end, const std::string& directory,
                           DType compute = DType::f32) {
  return train_on_ranks(
      {.stage = layout.stage,
       .compute = compute,
       .seed = first > 0 ? 99u : 3407u,
       .param_persistence_threshold = 20},
      {.ranks = layout.ranks, .first = first, .end = end, .directory = directory});
}

}  // namespace

TEST_CASE(
    "a run saved on any ranks and stage and resumed on any others gives the uninterrupted run's "
    "bits") {
  const TemporaryFolder folder;
  std::map<DType, TrainingOutcome> wholes;
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    wholes[compute] = train_part({1, 0}, 0, last, folder / name_of(compute), compute);
    // From 2^16 on gradients near 3 overflow f16 up to 2^14, once more for hysteresis: cuts after
    // a skipped step and after a taken one.
    CHECK(wholes[compute].skipped == (compute == DType::f16 ? 3 : 0));
  }
  int number = 0;
  for_cover(
      [&](DType compute, int cut, int ranks, int stage, int other_ranks, int other_stage) {
        INFO(name_of(compute), ", ", ranks, " ranks, stage ", stage, ", cut ", cut, ", ",
             other_ranks, " ranks, stage ", other_stage);
        const std::string directory = folder / std::to_string(number++);
        const TrainingOutcome& whole = wholes.at(compute);
        const TrainingOutcome front = train_part({ranks, stage}, 0, cut, directory, compute);
        const TrainingOutcome back =
            train_part({other_ranks, other_stage}, cut, last, directory, compute);
        std::vector<double> losses = front.losses;
        losses.insert(losses.end(), back.losses.begin(), back.losses.end());
        CHECK(losses == whole.losses);
        CHECK(back.hash == whole.hash);
        CHECK(back.skipped == whole.skipped);
      },
      std::vector{DType::f32, DType::bf16, DType::f16}, std::vector{1, 2, 3, 4},
      std::vector{1, 2, 3, 4}, std::vector{0, 1, 2, 3}, std::vector{1, 2, 3, 4},
      std::vector{0, 1, 2, 3});
}

TEST_CASE("each rank writes its own shard, and together they tile every parameter") {
  const TemporaryFolder folder;
  train_part({4, 3}, 0, 1, folder.path());
  const std::string step = folder / "step_1";
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(step))
    names.insert(entry.path().filename().string());
  CHECK(names == std::set<std::string>{"manifest.json", "shard_00000.safetensors",
                                       "shard_00001.safetensors", "shard_00002.safetensors",
                                       "shard_00003.safetensors"});
  zero::verify_checkpoint(step);
  int64_t elements = 0;
  names.erase("manifest.json");
  for (const std::string& name : names) {
    const SafetensorsReader shard(step + "/" + name);
    for (const auto& [tensor, entry] : shard.entries()) elements += entry.shape.numel();
  }
  int64_t expected = 0;
  const Toy toy;
  for (const auto& parameter : toy.store.parameters())
    expected += parameter->shape.numel() * (parameter->trainable ? 3 : 1);
  CHECK(elements == expected);
}

TEST_CASE("when save_checkpoint returns on a rank, that rank can verify the checkpoint at once") {
  const TemporaryFolder folder;
  run_local(4, [&](Communicator& comm, const Device& device) {
    const Toy toy;
    Engine engine(toy.store, comm, device, {.stage = 2});
    for (int64_t step = 1; step <= 5; ++step) {
      engine.set_steps(step, 0);
      zero::verify_checkpoint(
          zero::save_checkpoint(folder.path(), engine, {.steps = step, .micro_batches = step}));
    }
  });
}

TEST_CASE(
    "if one rank cannot write its shard, save_checkpoint throws FileError and leaves no "
    "checkpoint") {
  const TemporaryFolder folder;
  train_part({2, 1}, 0, 1, folder.path());
  const auto save = [&](Communicator& comm, const Device& device) {
    const Toy toy;
    Engine engine(toy.store, comm, device, {.stage = 1});
    // Rank 1 is given another directory, which does not exist.
    const std::string directory = comm.rank() == 0 ? folder.path() : folder / "absent";
    zero::save_checkpoint(directory, engine, {.steps = 0});
  };
  CHECK_THROWS_AS(run_local(2, save), FileError);
  CHECK(!std::filesystem::exists(folder / "step_0"));
  zero::verify_checkpoint(folder / "step_1");
}

TEST_CASE("load_weights loads a checkpoint's weights onto any number of ranks and any stage") {
  const TemporaryFolder folder;
  const std::string hash = train_part({3, 2}, 0, 2, folder.path()).hash;
  for (const Layout& layout : {Layout{1, 0}, Layout{2, 3}, Layout{4, 1}})
    run_local(layout.ranks, [&](Communicator& comm, const Device& device) {
      const Toy toy;
      Engine engine(toy.store, comm, device,
                    {.stage = layout.stage, .seed = 4, .param_persistence_threshold = 0});
      zero::load_weights(folder.path(), engine);
      if (engine.parameter_hash() != hash) throw ShapeError("other weights");
    });
}
