#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/cover.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/mesh_toy.h"
#include "tests/zero/training_run.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using zero::StepResult;

namespace {

constexpr int mesh_micro_batches = 4, mesh_steps = 3;

std::string mesh_text(const MeshShape& shape) {
  return "data " + std::to_string(shape.data) + " x pipeline " + std::to_string(shape.pipeline) +
         " x tensor " + std::to_string(shape.tensor);
}

/// Trains the toy for three steps on a mesh. Returns results that are equal on all ranks.
TrainingOutcome train_mesh(const MeshShape& shape, const Config& config) {
  TrainingOutcome outcome;
  std::mutex mutex;
  run_local(shape.ranks(), [&](Communicator& world, const Device& device) {
    const Mesh mesh(world, shape);
    const MeshToy toy(mesh);
    Engine engine(toy.store, mesh, device, config);
    TrainingOutcome own;
    for (int step = 0; step < mesh_steps; ++step) {
      std::vector<double> losses;
      for (int g = mesh.data_rank; g < mesh_micro_batches; g += shape.data) {
        const double loss = mesh_micro_batch(engine, static_cast<uint64_t>(step * 10 + g));
        if (mesh.is_last_stage()) losses.push_back(loss + mesh.tensor_rank);  // rank 0 counts
      }
      own.losses.push_back(engine.mean_loss(losses, engine.micro_batches()));
      const StepResult result = engine.step(1e-2f);
      own.norms.push_back(result.gradient_norm);
      own.scales.push_back(result.loss_scale);
    }
    own.hash = engine.parameter_hash();
    const std::lock_guard lock(mutex);
    if (outcome.hash.empty()) outcome = own;
    if (!(outcome == own)) throw ShapeError("ranks ended with different outcomes");
  });
  return outcome;
}

}  // namespace

TEST_CASE(
    "a mesh of any shape trains to the same parameters as one rank, at every stage and dtype") {
  const zero::LossScaleOptions scaling{.initial_scale_power = 15, .hysteresis = 1};
  std::map<DType, TrainingOutcome> one;
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    const TrainingOutcome& alone = one[compute] =
        train_mesh({}, {.compute = compute, .loss_scaling = scaling});
    CHECK(std::isinf(alone.norms[0]) == (compute == DType::f16));
    CHECK(std::isfinite(alone.norms[mesh_steps - 1]));
  }
  for_cover(
      [&](DType compute, const MeshShape& shape, int stage) {
        INFO(name_of(compute), ", ", mesh_text(shape), ", stage ", stage);
        const TrainingOutcome& alone = one.at(compute);
        const TrainingOutcome outcome = train_mesh(shape, {.stage = stage,
                                                           .compute = compute,
                                                           .loss_scaling = scaling,
                                                           .param_persistence_threshold = 40});
        CHECK(outcome.hash == alone.hash);
        CHECK(outcome.losses == alone.losses);
        CHECK(outcome.scales == alone.scales);
        CHECK(outcome.norms == alone.norms);  // granules of squares keep to the reduction groups
      },
      std::vector{DType::f32, DType::bf16, DType::f16},
      std::vector<MeshShape>{{2, 2, 2}, {4, 1, 2}, {1, 4, 2}, {2, 1, 4}, {2, 4, 1}, {1, 2, 4}},
      std::vector{0, 1, 2, 3});
}

TEST_CASE("stochastic rounding on a mesh gives the same parameters as on one rank") {
  const Config config{.stage = 1,
                      .compute = DType::bf16,
                      .optimizer = DType::bf16,
                      .update = {.stochastic_rounding = true}};
  const TrainingOutcome alone = train_mesh({}, config);
  for (const MeshShape& shape : {MeshShape{2, 2, 2}, MeshShape{2, 1, 4}}) {
    CAPTURE(mesh_text(shape));
    CHECK(train_mesh(shape, config).hash == alone.hash);
  }
}

TEST_CASE(
    "parameter groups give the same hash on every mesh, and a group that matches nothing is "
    "refused") {
  // The first group is on one of four stages, the second on the first and the last.
  Config config{.stage = 1,
                .update = {.groups = {{"unit.[01].*", 0.25f, 0.5f}, {"tied", 2.0f, 0.0f}}}};
  const TrainingOutcome alone = train_mesh({}, config);
  for (const MeshShape& shape : {MeshShape{2, 2, 2}, MeshShape{1, 4, 2}, MeshShape{2, 1, 4}}) {
    CAPTURE(mesh_text(shape));
    CHECK(train_mesh(shape, config).hash == alone.hash);
    Config unused = config;
    unused.update.groups.push_back({"unit.9.*", 0.0f});
    CHECK_ERROR(Error, "group 3 'unit.9.*' decides for no parameter", train_mesh(shape, unused));
  }
  config.update.groups = {};
  CHECK(train_mesh({}, config).hash != alone.hash);
}

TEST_CASE("a gradient that is not finite is named on every rank of a mesh, and nothing changes") {
  const MeshShape shape{2, 2, 2};
  run_local(8, [&](Communicator& world, const Device& device) {
    const Mesh mesh(world, shape);
    const MeshToy toy(mesh);
    Engine engine(toy.store, mesh, device, {.stage = 1});
    const std::string before = engine.parameter_hash();
    // Both stages have a bad gradient, each on one data and tensor rank. The lower stage's is
    // reported.
    const std::string bad[] = {"unit.2.heads", "unit.5.gain"};
    Gradients gradients;
    for (const auto& parameter : toy.store.parameters()) {
      if (!parameter->trainable) continue;
      gradients[parameter.get()].assign(static_cast<size_t>(parameter->shape.numel()), 1.0f);
      if (parameter->name == bad[mesh.stage] && mesh.data_rank == 1 && mesh.tensor_rank == 1)
        gradients[parameter.get()].back() = std::numeric_limits<float>::infinity();
    }
    run_micro_batch(engine, gradients);
    const StepResult result = engine.step(1e-2f);
    if (!result.skipped || result.bad_tensor != bad[0] || engine.skipped() != 1)
      throw ShapeError("rank " + std::to_string(world.rank()) + " says '" + result.bad_tensor +
                       "'");
    if (engine.parameter_hash() != before) throw ShapeError("parameters changed");
    // A bad gradient of a parameter that all tensor ranks have, on all of them.
    for (auto& [parameter, values] : gradients) {
      values.back() = 1.0f;
      if (parameter->name == "unit.1.gain" || parameter->name == "unit.4.gain")
        values.front() = std::nanf("");
    }
    run_micro_batch(engine, gradients);
    if (engine.step(1e-2f).bad_tensor != "unit.1.gain") throw ShapeError("not the first");
  });
}

TEST_CASE("the gradient norm counts a parameter that is replicated over tensor ranks once") {
  run_local(4, [&](Communicator& world, const Device& device) {
    const Mesh mesh(world, {.tensor = 4});
    ParameterStore store;
    const Unit& unit = store.unit("unit");
    const Parameter& gain = store.add(unit, "gain", {100}, Init::ones(),
                                      {.copy = mesh.tensor_rank ? Copy::replica : Copy::own});
    Engine engine(store, mesh, device, {.clip_norm = 0.0f});
    run_micro_batch(engine, {{&gain, std::vector<float>(100, 3.0f)}});
    if (const double norm = engine.step(1e-2f).gradient_norm; norm != 30.0)
      throw ShapeError("norm " + std::to_string(norm));
  });
}

TEST_CASE(
    "Engine::mean_loss in a pipeline refuses a loss count that differs from the micro-batch "
    "count") {
  const auto ask = [](Communicator& world, const Device& device) {
    const Mesh mesh(world, {.pipeline = 2});
    const MeshToy toy(mesh);
    Engine engine(toy.store, mesh, device);
    engine.mean_loss(std::vector<double>{1.0, 2.0}, 3);
  };
  CHECK_THROWS_AS(run_local(2, ask), ConfigError);
}

namespace {

/// Memory and traffic of a taken and a skipped step, a save and a load, with the same gradients on
/// every device. Without values (meta) it is a dry run. Contains peaks, traffic and resting bytes.
struct DryRun {
  std::vector<MemoryTracker::Row> rows;
  std::vector<WireCounts> wire;
  zero::RestingBytes rest;
};
DryRun dry_run(Communicator& world, const Device& device, const MeshShape& shape,
               const Config& config, const std::string& directory) {
  const Mesh mesh(world, shape);
  const MeshToy toy(mesh);
  Engine engine(toy.store, mesh, device, config);
  for (const float last : {1.0f, std::numeric_limits<float>::infinity()}) {
    Gradients gradients;
    for (const auto& parameter : toy.store.parameters())
      if (parameter->trainable)
        gradients[parameter.get()].assign(static_cast<size_t>(parameter->shape.numel()), last);
    for (int i = 0; i < 3; ++i) run_micro_batch(engine, gradients);
    engine.mean_loss(mesh.is_last_stage() ? std::vector<double>(3) : std::vector<double>(), 3);
    engine.step(1e-3f);
  }
  zero::save_checkpoint(directory, engine, {.steps = engine.steps(), .skipped = engine.skipped()});
  zero::load_checkpoint(directory, engine);
  DryRun dry_run{.rows = device.memory().rows(), .rest = engine.resting_bytes()};
  for (Communicator* channel : {&world, mesh.data, mesh.tensor, mesh.pipeline, mesh.ends.get()})
    dry_run.wire.push_back(channel ? channel->wire() : WireCounts());
  return dry_run;
}

}  // namespace

TEST_CASE("a mesh rank on meta has the same memory and communication volume as a real rank") {
  for (const int stage : {0, 1, 3}) {
    const MeshShape shape{2, 2, 2};
    const Config config{.stage = stage, .compute = DType::bf16, .param_persistence_threshold = 40};
    const TemporaryFolder folder;
    std::mutex mutex;
    run_local(8, [&](Communicator& world, const Device& device) {
      const DryRun real = dry_run(world, device, shape, config, folder.path());
      const std::lock_guard lock(mutex);
      const Device meta = Device::meta(world.rank());
      const auto counting = counting_communicator(world.rank(), 8);
      const DryRun planned = dry_run(*counting, meta, shape, config, folder.path());
      INFO("stage ", stage, ", ", world.rank());
      REQUIRE(real.rows.size() == planned.rows.size());
      for (size_t i = 0; i < real.rows.size(); ++i) {
        CHECK(real.rows[i].live == planned.rows[i].live);
        CHECK(real.rows[i].peak == planned.rows[i].peak);
      }
      for (size_t channel = 0; channel < real.wire.size(); ++channel)
        for (size_t kind = 0; kind < real.wire[channel].size(); ++kind) {
          CHECK(real.wire[channel][kind].calls == planned.wire[channel][kind].calls);
          CHECK(real.wire[channel][kind].bytes == planned.wire[channel][kind].bytes);
        }
      CHECK(real.rest == planned.rest);
      CHECK(real.rest.padding >= 0);
    });
  }
}
