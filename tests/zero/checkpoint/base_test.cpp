#include <nlohmann/json.hpp>

#include "tests/support/cover.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/toy.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/trainer.h"

// Checkpoints that leave out frozen parameters, and name the weights that those are read from.
using namespace zg;
using namespace zg::testing;
using namespace zg::zero;

namespace {

/// A large frozen matrix that is not saved, and two parameters that are trained.
struct BasedToy {
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  const Parameter& base = store.add(unit, "m.base", {40, 33}, Init::normal(0.5f),
                                    {.decay = true, .trainable = false, .saved = false});
  const Parameter& low = store.add(unit, "m.low", {3, 33}, Init::uniform(0.3f), {.decay = true});
  const Parameter& bias = store.add(unit, "bias", {7}, Init::zeros());
};

WeightSource source_of(const std::string& path, const BasedToy& toy, float first) {
  WeightSource weights{.path = path, .shapes = {{"m.base", toy.base.shape}}};
  weights.read = [first, numel = toy.base.shape.numel()](const std::string&) {
    std::vector<float> values(static_cast<size_t>(numel), 0.25f);
    values[0] = first;
    return values;
  };
  return weights;
}

bool is_left_out(const Parameter& parameter) { return !parameter.saved; }

const std::vector<Config>& base_configs() {
  static const std::vector<Config> configs = [] {
    std::vector<Config> list(4);
    list[1].stage = list[2].stage = list[3].stage = 3;
    for (Config& config : list) config.param_persistence_threshold = 0;
    list[2].offload = {.parameter = Space::host, .optimizer = Space::host};
    list[3].offload = {.parameter = Space::file};
    return list;
  }();
  return configs;
}

CheckpointInfo info_with_base(const Engine& engine, const CheckpointInfo::Base& base) {
  return {.steps = engine.steps(), .base = base};
}

}  // namespace

TEST_CASE("a checkpoint leaves out what is not saved, and a resumed engine has the same bits") {
  for_cover(
      [](DType compute, const Config& place, int ranks) {
        INFO(name_of(compute), ", place ", &place - base_configs().data(), ", ranks ", ranks);
        const TemporaryFolder folder;
        const BasedToy toy;
        const WeightSource base = source_of("the base", toy, 1.0f);
        const CheckpointInfo::Base named{"the base", weights_hash(base)};
        const auto hash_of = [&](Config config, const auto& train) {
          config.compute = compute;
          std::string hash;
          run_local(ranks,
                    [&](Communicator& comm, const Device& device) {
                      Engine engine(toy.store, comm, device, config);
                      load_weights(base, engine, is_left_out);
                      train(engine);
                      train_step(engine, 2);
                      const std::string own = engine.parameter_hash();
                      if (comm.rank() == 0) hash = own;
                    },
                    {.device = {.swap = {.directory = folder.path()}}});
          return hash;
        };
        const std::string whole = hash_of(place, [&](Engine& engine) {
          for (int step = 0; step < 2; ++step) train_step(engine, step);
          save_checkpoint(folder.path(), engine, info_with_base(engine, named));
        });
        const nlohmann::json manifest =
            nlohmann::json::parse(read_text(folder / "step_2/manifest.json"));
        CHECK(manifest.at("base").at("path") == "the base");
        CHECK(manifest.at("base").at("hash") == named.hash);
        CHECK(manifest.at("parameters").size() == 2);
        CHECK(!manifest.at("parameters").contains("m.base"));
        CHECK(damages_of(folder / "step_2").empty());
        CHECK(read_checkpoint_info(folder.path()).base == named);
        // Another stage, without offload.
        CHECK(hash_of(base_configs()[0],
                      [&](Engine& engine) { load_checkpoint(folder.path(), engine); }) == whole);
      },
      std::vector{DType::f32, DType::bf16}, base_configs(), std::vector{1, 2, 3});
}

TEST_CASE("a save that would lose parameters, or another base, is refused") {
  const TemporaryFolder folder;
  const BasedToy toy;
  Engine engine(toy.store, Device::cpu());
  CHECK(message_of<ConfigError>([&] { save_checkpoint(folder.path(), engine, {}); }) ==
        "save_checkpoint: 'm.base' is not saved, and info.base does not say where it is read; "
        "expected its path and the weights_hash() of its weights");
  CHECK(step_folders(folder.path()).empty());
  const WeightSource base = source_of("the base", toy, 1.0f), other = source_of("x", toy, 1.5f);
  const CheckpointInfo::Base named{"the base", weights_hash(base)};
  CHECK_NOTHROW(check_base(named, base));
  CHECK(message_of<FileError>([&] { check_base(named, other); }) ==
        "base: x: the weights have the hash " + weights_hash(other) + "; expected " + named.hash +
            ", of the weights that the adapters were trained for; restore those at this path");
  WeightSource in_ranges = base;
  in_ranges.read_range = [&](const std::string& name, int64_t begin, int64_t count) {
    const std::vector<float> all = base.read(name);
    return std::optional(std::vector<float>(all.begin() + begin, all.begin() + begin + count));
  };
  CHECK(weights_hash(in_ranges) == named.hash);
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  CHECK_ERROR(ConfigError, "'w' is trainable and not saved",
              store.add(unit, "w", {1}, Init::zeros(), {.saved = false}));
}

TEST_CASE("frozen parameters have no masters, moments and sums, and trained ones alone have") {
  const BasedToy toy;
  const auto rest = [&](const Config& config) {
    return Engine(toy.store, Device::cpu(), config).resting_bytes();
  };
  const int64_t frozen = toy.base.shape.numel(),
                trained = toy.low.shape.numel() + toy.bias.shape.numel();
  const RestingBytes bytes = rest({.compute = DType::bf16});
  CHECK(bytes.parameter == 2 * frozen);  // trained ones are rounded from the masters at their use
  CHECK(bytes.gradient == 4 * trained);
  CHECK(bytes.optimizer == 12 * trained);
}

TEST_CASE("a trainer saves the base that its options name") {
  const TemporaryFolder folder;
  const BasedToy toy;
  Engine engine(toy.store, Device::cpu());
  Trainer trainer(engine,
                  {.steps = 1,
                   .checkpoints = CheckpointDirectory::Options{.path = folder.path()},
                   .base = {"somewhere", "hash"}},
                  {.forward = [&](Tape& tape, const MicroBatch&) {
                    const Tape::Use use(tape, toy.unit);
                    return distance(tape, {}, toy.bias, 1);
                  }});
  CHECK(trainer.run().saved);
  CHECK(read_checkpoint_info(folder.path()).base == CheckpointInfo::Base{"somewhere", "hash"});
}
