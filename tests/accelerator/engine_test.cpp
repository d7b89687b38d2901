#include "zerograd/zero/engine.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cover.h"
#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tested_type.h"
#include "tests/zero/toy.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/error.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/checkpoint/checkpoint_save.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using zero::OffloadOptions;

// The kernels of the toy model are exact, so CPU and accelerator give the same bits.
namespace {

struct EngineOutcome {
  std::string hash;
  std::vector<double> losses;
  int64_t skipped = 0;
  bool operator==(const EngineOutcome&) const = default;
};

constexpr int engine_micro_batches = 4, engine_steps = 3;

/// Trains for `engine_steps` steps, after those of a checkpoint if one is given, and saves a
/// checkpoint to `save`.
EngineOutcome train_engine(const Config& config, int ranks, Device::Type type,
                           const std::string& load = "", const std::string& save = "") {
  EngineOutcome outcome;
  std::mutex mutex;
  const auto rank = [&](Communicator& comm, const Device& device) {
    const Toy toy;
    Engine engine(toy.store, comm, device, config);
    if (!load.empty()) zero::load_checkpoint(load, engine);
    std::vector<double> losses;
    for (int step = 0; step < engine_steps; ++step) {
      std::vector<double> own;
      for (int g = comm.rank(); g < engine_micro_batches; g += ranks)
        own.push_back(train_micro_batch(
            engine, static_cast<uint64_t>(engine.steps() * engine_micro_batches + g)));
      losses.push_back(engine.mean_loss(own));
      engine.step(1e-2f);
    }
    if (!save.empty()) zero::save_checkpoint(save, engine, {.steps = engine.steps()});
    const EngineOutcome here{engine.parameter_hash(), losses, engine.skipped()};
    const std::lock_guard lock(mutex);
    if (outcome.hash.empty()) outcome = here;
    if (!(outcome == here)) throw ShapeError("ranks ended with different outcomes");
  };
  run_local(ranks, rank, {.device = {.swap = {.directory = "/tmp"}}, .type = type});
  return outcome;
}

const Space spaces[] = {Space::device, Space::host, Space::file};

std::string str(const Config& config, int ranks) {
  std::string text = "stage " + std::to_string(config.stage) + ", " + std::to_string(ranks) +
                     " ranks, " + name_of(config.compute);
  for (const Space space : {config.offload.parameter, config.offload.gradient,
                            config.offload.optimizer, config.offload.activation})
    text += std::string(", ") + name_of(space);
  return text;
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("ZeRO stages, world sizes and offload on accelerators give the cpu's bits") {
  const std::vector<DType> every =
      on_device({DType::f32, DType::bf16, DType::f16}, device_of_rank(tested_type, 0, {}));
  std::map<DType, EngineOutcome> expected;
  for (const std::vector<size_t>& c : cover_rows({every.size(), 4, 2, 3})) {
    const DType compute = every[c[0]];
    const int stage = static_cast<int>(c[1]), ranks = c[2] == 0 ? 1 : 2;
    const Space space = spaces[c[3]];
    // In f16 the first step overflows and is skipped.
    Config config{.compute = compute, .loss_scaling = {.initial_scale_power = 16, .hysteresis = 1}};
    if (!expected.contains(compute)) {
      const EngineOutcome& cpu = expected[compute] = train_engine(config, 1, Device::Type::cpu);
      CHECK((cpu.skipped > 0) == (compute == DType::f16));
      CHECK(cpu.skipped < engine_steps);
    }
    config.stage = stage;
    config.overlap_comm = compute != DType::f16;
    config.param_persistence_threshold = ranks == 1 ? 0 : 64;
    config.offload = {.parameter = stage == 3 ? space : Space::device,
                      .gradient = compute == DType::bf16 ? Space::device : space,
                      .optimizer = space,
                      .activation = compute == DType::f32 ? space : Space::device,
                      .sub_group_size = 64};
    CAPTURE(str(config, ranks));
    CHECK(train_engine(config, ranks, tested_type) == expected[compute]);
  }
}

namespace {

/// Parameters and moments of an engine's trainable parameters.
std::vector<std::vector<float>> states_of(const Engine& engine, const Toy& toy) {
  std::vector<std::vector<float>> states;
  for (const Parameter* parameter : toy.trainable())
    for (const auto& state :
         {Engine::State::master, Engine::State::moment1, Engine::State::moment2})
      states.push_back(engine.read(*parameter, state));
  return states;
}

}  // namespace

TEST_CASE("a step on an accelerator with an infinite or NaN gradient changes no state") {
  for (const DType compute : {DType::f32, DType::bf16})
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      INFO(name_of(compute), ", bad ", bad);
      const Toy toy;
      Engine engine(toy.store, device_of_rank(tested_type, 0, {}),
                    {.compute = compute, .clip_norm = 1.0f});
      train_step(engine, 0);
      const auto before = states_of(engine, toy);
      Gradients gradients = random_gradients(toy.trainable(), 1);
      gradients[&toy.gain][128] = bad;
      run_micro_batch(engine, gradients);
      const zero::StepResult result = engine.step(1e-2f);
      CHECK(result.skipped);
      CHECK(result.bad_tensor == "gain");
      CHECK(std::isinf(result.gradient_norm));
      CHECK(engine.skipped() == 1);
      CHECK(states_of(engine, toy) == before);
      // The next step is the one after the last that counted.
      Engine straight(toy.store, Device::cpu(), {.compute = compute, .clip_norm = 1.0f});
      train_step(straight, 0);
      train_step(straight, 1);
      train_step(engine, 1);
      CHECK(engine.parameter_hash() == straight.parameter_hash());
    }
}

TEST_CASE("an invalid value that a kernel finds is thrown by the step, which changes no state") {
  const Toy toy;
  const Device device = device_of_rank(tested_type, 0, {});
  Engine engine(toy.store, device, {.compute = DType::f32});
  train_step(engine, 0);
  const auto before = states_of(engine, toy);
  run_micro_batch(engine, random_gradients(toy.trainable(), 1));
  const Tensor table = Tensor::zeros({4, 8}, DType::f32, device);
  const Tensor rows = Tensor::zeros({1, 8}, DType::f32, device);
  const Tensor ids = Tensor::from(std::vector<int32_t>{9}, {1}, device);
  kernels::embedding_forward({.ids = ids, .weight = table, .y = rows}, device.compute());
  CHECK(message_of<ShapeError>([&] { engine.step(1e-2f); }) ==
        "embedding_forward: ids[0] is 9; expected 0 to 3");
  engine.drop_gradients();
  CHECK(engine.steps() == 1);
  CHECK(states_of(engine, toy) == before);
}

TEST_CASE("stochastic rounding on accelerators, with or without offload, gives the cpu's bits") {
  const Config plain{
      .compute = DType::bf16, .optimizer = DType::bf16, .update = {.stochastic_rounding = true}};
  const EngineOutcome expected = train_engine(plain, 1, Device::Type::cpu);
  for (const std::vector<size_t>& c : cover_rows({3, 2, 3})) {
    const int ranks = c[1] == 0 ? 1 : 2;
    Config config = plain;
    config.stage = std::vector{0, 1, 3}[c[0]];
    config.param_persistence_threshold = ranks == 1 ? 0 : 64;
    config.offload = {.parameter = config.stage == 3 ? spaces[c[2]] : Space::device,
                      .optimizer = spaces[c[2]],
                      .sub_group_size = 64};
    CAPTURE(str(config, ranks));
    CHECK(train_engine(config, ranks, tested_type) == expected);
  }
}

TEST_CASE("states on the host of an accelerator are updated by the cpu, others by the device") {
  const auto updated = [](const OffloadOptions& offload) {
    return train_engine({.stage = 1, .compute = DType::bf16, .offload = offload}, 2, tested_type);
  };
  const EngineOutcome expected = updated({});
  auto& slot = tested_type == Device::Type::hpu
                   ? kernels::optimizer_update[Device::Type::hpu].function
                   : kernels::optimizer_update[Device::Type::cuda].function;
  const auto own = std::exchange(slot, nullptr);
  const auto here = message_of<Unsupported>([&] { updated({}); });
  const EngineOutcome on_host = updated({.optimizer = Space::host, .sub_group_size = 64});
  slot = own;
  // Both ranks fail; the first one is named.
  CHECK(here.substr(here.find(':')) == ": optimizer_update: no " + tested_name() + " kernel");
  CHECK(on_host == expected);
}

TEST_CASE(
    "training that moves by checkpoints to the CPU and back to an accelerator equals CPU "
    "training") {
  using enum Device::Type;
  const std::pair<DType, Space> cases[] = {
      {DType::f32, Space::device}, {DType::bf16, Space::host}, {DType::bf16, Space::file}};
  for (const auto& [compute, space] : cases) {
    INFO(name_of(compute), ", ", name_of(space));
    const TemporaryFolder reference, folder;
    const Config config{.stage = 3,
                        .compute = compute,
                        .offload = {.parameter = space, .optimizer = space},
                        .param_persistence_threshold = 16};
    train_engine({.compute = compute}, 1, cpu, "", reference.path());
    train_engine({.compute = compute}, 1, cpu, reference / "step_3", reference.path());
    const EngineOutcome expected = train_engine({.compute = compute}, 1, cpu, reference / "step_6");
    train_engine(config, 2, tested_type, "", folder.path());
    train_engine({.stage = 1, .compute = compute}, 2, cpu, folder / "step_3", folder.path());
    CHECK(train_engine(config, 1, tested_type, folder / "step_6") == expected);
  }
}

TEST_CASE(
    "a save beside training on an accelerator stores the state of the step at which it began") {
  for (const DType optimizer : {DType::f32, DType::bf16})
    for (const Space space : spaces) {
      INFO(name_of(optimizer), ", ", name_of(space));
      const TemporaryFolder folder, disk;
      const Toy toy;
      const Device device = device_of_rank(tested_type, 0, {.swap = {.directory = disk.path()}});
      const Config config{
          .compute = DType::bf16, .optimizer = optimizer, .offload = {.optimizer = space}};
      Engine engine(toy.store, device, config);
      train_step(engine, 0);
      const std::string hash = engine.parameter_hash();
      zero::CheckpointSave save(folder.path(), engine, {.steps = engine.steps()});
      for (int step = 1; step < 4; ++step) train_step(engine, step);
      CHECK(save.finish().failed_rank == -1);
      CHECK(engine.parameter_hash() != hash);
      Engine loaded(toy.store, Device::cpu(), {.compute = DType::bf16, .optimizer = optimizer});
      zero::load_checkpoint(folder.path(), loaded);
      CHECK(loaded.parameter_hash() == hash);
    }
}

TEST_CASE(
    "an engine on a meta device counts an accelerator's memory per phase, for every offload "
    "space") {
  for (const DType compute : {DType::f32, DType::bf16})
    for (const Space space : spaces) {
      INFO(name_of(compute), ", ", name_of(space));
      const TemporaryFolder disk;
      const DeviceOptions options{.swap = {.directory = disk.path()}};
      const auto measured = [&](const Device& device) {
        const Toy toy;
        Engine engine(toy.store, device,
                      {.stage = 3,
                       .compute = compute,
                       .offload = {.parameter = space,
                                   .gradient = space,
                                   .optimizer = space,
                                   .activation = space},
                       .param_persistence_threshold = 0});
        for (uint64_t step = 1; step <= 2; ++step) {
          run_micro_batch(engine, random_gradients(toy.trainable(), step));
          engine.step(1e-3f);
          zero::CheckpointSave save(disk.path(), engine, {.steps = engine.steps()});
          save.finish();
        }
        return device.memory().rows();
      };
      const auto real = measured(device_of_rank(tested_type, 0, options));
      const auto plan = measured(Device::meta(0, options, tested_type));
      REQUIRE(real.size() == plan.size());
      int64_t pinned = 0;
      for (size_t i = 0; i < real.size(); ++i) {
        INFO(real[i].phase, ", ", name_of(real[i].space), ", peak ", real[i].peak, " and ",
             plan[i].peak);
        CHECK(real[i] == plan[i]);
        CHECK(real[i].space != Space::host);
        if (real[i].space == Space::pinned) pinned += real[i].peak;
      }
      CHECK(pinned > 0);
    }
}

TEST_SUITE_END();
