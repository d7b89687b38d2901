// Tests of Adafactor: agreement with PyTorch, the same parameter hash for every division of the
// work, plans, saved second moments.
#include "zerograd/zero/optimizer/adafactor.h"

#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/matrix_toy.h"
#include "tests/zero/optimizer/torch_steps.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"
#include "zerograd/zero/checkpoint/consolidate.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using zero::UpdateOptions;
using State = zero::Engine::State;

namespace {

const UpdateOptions adafactor = {.rule = OptimizerRule::adafactor};

}  // namespace

TEST_CASE("adafactor steps agree with torch.optim.Adafactor within its rounding") {
  const nlohmann::json fixture = torch_fixture("adafactor.json");
  struct Variant {
    const char* name;
    float rate, decay;
    zero::AdafactorOptions options = {};
  };
  const Variant variants[] = {
      {"default", 0.05f, 0.0f},
      {"decay", 0.05f, 0.1f},
      {"large rate", 2.0f, 0.1f},
      {"options",
       0.05f,
       0.0f,
       {.beta2_decay = -0.5f, .epsilon1 = 0.01f, .epsilon2 = 0.1f, .clip = 1.5f}}};
  for (const Variant& variant : variants) {
    CAPTURE(std::string(variant.name));
    UpdateOptions update = adafactor;
    update.adafactor = variant.options;
    update.weight_decay = variant.decay;
    TorchSteps steps(fixture, {.decay = true}, update, variant.rate);
    const auto& [store, parameters, engine] = steps;
    const nlohmann::json& results = fixture["results"][variant.name];
    for (size_t i = 0; i < parameters.size(); ++i) {
      CAPTURE(i);
      const std::vector<double> values = results["parameters"][i], moments = results["moments"][i];
      // PyTorch's result is in f64; ours has a few roundings of each of the five steps.
      CHECK(difference(engine.read(*parameters[i], State::master), values) <= 1e-6);
      CHECK(difference(engine.read(*parameters[i], State::moment2), moments) <= 1e-6);
      CHECK(engine.read(*parameters[i], State::moment1).empty());
    }
  }
}

TEST_CASE("adafactor has the same bits for any number of threads on parameters of many tasks") {
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 5}) {
    ParameterStore store;
    const Unit& unit = store.unit("unit");
    const Parameter& matrix =
        store.add(unit, "matrix", {700, 311}, Init::normal(0.5f), {.decay = true});
    const Parameter& vector = store.add(unit, "vector", {100'001}, Init::normal(0.5f));
    Engine engine(store, Device::cpu(0, {.threads = threads}), {.update = adafactor});
    for (const uint64_t step : {1, 2}) {
      run_micro_batch(engine, random_gradients({&matrix, &vector}, step));
      engine.step(0.1f);
    }
    std::vector<float>& result = results.emplace_back();
    for (const Parameter* parameter : {&matrix, &vector})
      for (const State& state : {State::master, State::moment2}) {
        const std::vector<float> values = engine.read(*parameter, state);
        result.insert(result.end(), values.begin(), values.end());
      }
  }
  CHECK(results[0].size() == 700 * 311 + 700 + 311 + 2 * 100'001);
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("with a rate of 0 adafactor updates the second moments and keeps the parameters") {
  const MatrixToy toy;
  UpdateOptions update = adafactor;
  update.groups = {{.pattern = "gain", .rate = 0.0f}};
  Engine engine(toy.store, Device::cpu(), {.update = update});
  const std::string start = engine.parameter_hash();
  train_step(engine, 0, 0.0f);
  CHECK(engine.parameter_hash() == start);
  CHECK(engine.read(toy.tall, State::moment2)[0] > 0.0f);
  const std::vector<float> gain = engine.read(toy.gain, State::master);
  const std::vector<float> moment = engine.read(toy.gain, State::moment2);
  train_step(engine, 1);
  CHECK(engine.parameter_hash() != start);
  CHECK(engine.read(toy.gain, State::master) == gain);
  CHECK(engine.read(toy.gain, State::moment2) != moment);
}

TEST_CASE("adafactor keeps, saves and loads second moments of rows and columns on every rank") {
  const int64_t parameters = 7 + 5 * 20 + 5 * 31 + 40 * 24 + 24 * 24 + 129 + 9 * 17;
  const int64_t factors = 7 + (5 + 20) + (5 + 31) + (40 + 24) + (24 + 24) + 129 + (9 + 17);
  for (const int ranks : {1, 3}) {
    const TemporaryFolder folder;
    run_local(ranks, [&](Communicator& comm, const Device& device) {
      const MatrixToy toy;
      Engine engine(toy.store, comm, device,
                    {.stage = ranks > 1 ? 1 : 0, .compute = DType::bf16, .update = adafactor});
      const int64_t bytes = engine.resting_bytes().optimizer;
      if (ranks == 1)
        CHECK(bytes == (parameters + factors) * 4);
      else
        CHECK(bytes < (parameters / 2 + factors) * 4);
      train_step(engine, 0);
      CHECK(engine.read(toy.tall, State::moment1).empty());
      CHECK(engine.read(toy.tall, State::moment2).size() == 40 + 24);
      CHECK(engine.read(toy.gain, State::moment2).size() == 129);
      CHECK(engine.read(toy.frozen, State::moment2).empty());
      const Engine::Held held = engine.held(toy.tall, State::moment2);
      CHECK(held.begin == 0);
      CHECK(held.end == 40 + 24);
      zero::save_checkpoint(folder.path(), engine, {.steps = 1, .micro_batches = 2 * ranks});
      // Loads on one rank at stage 0. After 3 ranks, both differ from the save. The states must be
      // the saved ones.
      Engine loaded(toy.store, device, {.update = adafactor});
      zero::load_checkpoint(folder.path(), loaded);
      for (const Parameter* parameter : {&toy.table, &toy.tall, &toy.gain, &toy.bias})
        for (const State& state : {State::master, State::moment2})
          CHECK(loaded.read(*parameter, state) == engine.read(*parameter, state));
    });
    const auto reader = zero::open_checkpoint(folder.path());
    CHECK(reader->damages().empty());
    CHECK(reader->manifest().optimizer == "adafactor");
    std::map<std::string, int64_t> saved;
    for (const auto& piece : reader->manifest().pieces) {
      CHECK(piece.state != "moment1");
      if (piece.state == "moment2") saved[piece.parameter] += piece.shape.numel();
    }
    CHECK(saved["tall"] == 40 + 24);
    CHECK(saved["gain"] == 129);
    CHECK(saved.count("frozen") == 0);
    CHECK(reader->read("tall", "moment2").size() == 40 + 24);
    zero::consolidate(folder.path(), folder / "weights.safetensors", DType::f32);
    const MatrixToy toy;
    Engine adam(toy.store, Device::cpu());
    CHECK(contains(message_of<ConfigError>([&] { zero::load_checkpoint(folder.path(), adam); }),
                   "was saved by adafactor with moment2 of whole parameters; expected adamw with "
                   "moment1 and moment2, as this engine has"));
    zero::load_weights(folder.path(), adam);
  }
}

TEST_CASE("adafactor trains, saves and loads empty parameters and single numbers beside others") {
  const TemporaryFolder folder;
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  store.add(unit, "empty", {0, 5}, Init::zeros());
  const Parameter& square = store.add(unit, "square", {2, 2}, Init::normal(0.5f));
  const Parameter& single = store.add(unit, "single", {1}, Init::ones());
  const Parameter& unused = store.add(unit, "unused", {3, 4}, Init::normal(0.5f));
  Engine engine(store, Device::cpu(), {.update = adafactor});
  run_micro_batch(engine, random_gradients({&square, &single}, 1));
  engine.step(0.1f);
  CHECK(engine.read(single, State::master) != std::vector<float>{1.0f});
  CHECK(engine.read(unused, State::moment2) == std::vector<float>(7, 0.0f));
  zero::save_checkpoint(folder.path(), engine, {.steps = 1, .micro_batches = 1});
  zero::verify_checkpoint(folder.path());
  Engine loaded(store, Device::cpu(), {.update = adafactor});
  zero::load_checkpoint(folder.path(), loaded);
  for (const auto& parameter : store.parameters())
    for (const State& state : {State::master, State::moment2})
      CHECK(loaded.read(*parameter, state) == engine.read(*parameter, state));
}

TEST_CASE("second moments of adafactor are written whole, and another length is refused") {
  const MatrixToy toy;
  Engine engine(toy.store, Device::cpu(), {.update = adafactor});
  std::vector<float> moments(40 + 24, 0.5f);
  moments[40] = 2.0f;
  engine.write(toy.tall, State::moment2, moments);
  CHECK(engine.read(toy.tall, State::moment2) == moments);
  engine.write_held(toy.tall, State::moment2, {40, 42}, std::vector<float>{3.0f, 4.0f});
  moments[40] = 3.0f;
  moments[41] = 4.0f;
  CHECK(engine.read(toy.tall, State::moment2) == moments);
  CHECK(message_of<ShapeError>([&] {
          engine.write(toy.tall, State::moment2, std::vector<float>(40 * 24));
        }) == "write: 'tall' takes 64 values, got 960");
}

TEST_CASE("adafactor refuses parameters that it does not support") {
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  store.add(unit, "half", {2, 5}, Init::zeros(),
            {.whole = {4, 5}, .slice = Slice{.extent = 4, .begin = 2, .rows = 2, .inner = 5}});
  CHECK(message_of<Unsupported>(
            [&] { Engine engine(store, Device::cpu(), {.update = adafactor}); }) ==
        "engine: the optimizer is adafactor, and tensor ranks divide the parameter 'half' [4, 5]: "
        "this one has [2, 5]; expected whole parameters; try one tensor rank, or data and "
        "pipeline ranks");
  ParameterStore deep;
  deep.add(deep.unit("unit"), "kernel", {2, 3, 4}, Init::zeros());
  CHECK(
      message_of<Unsupported>([&] { Engine engine(deep, Device::cpu(), {.update = adafactor}); }) ==
      "optimizer: adafactor does not update 'kernel' [2, 3, 4]; expected an optimizer for it in "
      "Optimizer::others(), or a parameter group");
  CHECK_NOTHROW(Engine(deep, Device::cpu()));
}
