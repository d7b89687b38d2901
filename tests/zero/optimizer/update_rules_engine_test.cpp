// Every optimizer keeps the engine's promises: bits, plans, checkpoints, snapshots, skipped steps.

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cover.h"
#include "tests/support/error_message.h"
#include "tests/support/planned.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/matrix_toy.h"
#include "tests/zero/one_hash.h"
#include "tests/zero/training_run.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"
#include "zerograd/zero/checkpoint/snapshot.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using zero::UpdateOptions;

namespace {

struct NamedRule {
  const char* name;
  UpdateOptions update;
  int moments;
};

std::vector<NamedRule> named_rules() {
  using enum OptimizerRule;
  return {
      {"adam", {.decoupled = false}, 2},
      {"adamw, groups", {.groups = {{"a.*", 0.25f, 0.5f}}}, 2},
      {"lion", {.rule = lion, .beta2 = 0.99f}, 1},
      {"sgd", {.rule = sgd, .decoupled = false}, 0},
      {"sgd, momentum", {.rule = sgd, .momentum = 0.9f, .dampening = 0.5f, .decoupled = false}, 1},
      {"sgd, nesterov", {.rule = sgd, .momentum = 0.9f, .nesterov = true, .decoupled = false}, 1}};
}

/// Those of all parameters alike, and those that need whole parameters.
std::vector<NamedRule> all_rules() {
  std::vector<NamedRule> rules = named_rules();
  rules.push_back({"muon", {.rule = OptimizerRule::muon}, 2});
  rules.push_back({"adafactor", {.rule = OptimizerRule::adafactor}, 0});
  return rules;
}

/// Each rule in f32 and bf16; those that need whole parameters also in f16, with parameter groups,
/// and all in bf16 with stochastic rounding.
std::vector<Config> configs_of_rules() {
  std::vector<Config> configs;
  for (const NamedRule& rule : all_rules()) {
    configs.push_back({.update = rule.update});
    Config& narrow = configs.emplace_back(Config{.compute = DType::bf16, .update = rule.update});
    const bool is_muon = rule.update.rule == OptimizerRule::muon;
    if (!is_muon && rule.update.rule != OptimizerRule::adafactor) continue;
    // With muon adam updates a large and a small matrix.
    narrow.update.groups = {{.pattern = "tall", .rate = is_muon ? 1.0f : 0.25f, .by_adam = is_muon},
                            {.pattern = "wide", .weight_decay = 0.5f, .by_adam = is_muon}};
    configs.push_back({.compute = DType::f16, .update = rule.update, .loss_scaling = low_scale});
    Config& stochastic = configs.emplace_back(Config{.compute = DType::bf16,
                                                     .optimizer = DType::bf16,
                                                     .grad_accum = DType::bf16,
                                                     .update = rule.update});
    stochastic.update.stochastic_rounding = true;
  }
  // `wide` and `alone` have fewer elements and stay gathered at stage 3; `tall` does not.
  for (Config& config : configs) config.param_persistence_threshold = 160;
  return configs;
}

using States = std::map<std::pair<const Parameter*, Engine::State>, std::vector<float>>;

States states_of(const MatrixToy& toy, const Engine& engine) {
  States states;
  for (const auto& parameter : toy.store.parameters())
    for (const auto& state :
         {Engine::State::master, Engine::State::moment1, Engine::State::moment2})
      states[{parameter.get(), state}] = engine.read(*parameter, state);
  return states;
}

}  // namespace

TEST_CASE(
    "each optimizer gives the same parameter hash for every stage, rank count, offload and "
    "restart") {
  check_one_hash(configs_of_rules(), [](const Config& config, const TrainingRun& run) {
    return train_on_ranks<MatrixToy>(config, run);
  });
}

TEST_CASE("five steps of each optimizer agree with torch.optim") {
  using enum OptimizerRule;
  const std::pair<const char*, UpdateOptions> optimizers[] = {
      {"adamw", {}},
      {"adam", {.decoupled = false}},
      {"lion", {.rule = lion, .beta2 = 0.99f}},
      {"sgd", {.rule = sgd, .decoupled = false}},
      {"sgd, momentum", {.rule = sgd, .momentum = 0.9f, .decoupled = false}},
      {"sgd, dampening", {.rule = sgd, .momentum = 0.9f, .dampening = 0.25f, .decoupled = false}},
      {"sgd, nesterov", {.rule = sgd, .momentum = 0.9f, .nesterov = true, .decoupled = false}}};
  std::ifstream file(ZG_FIXTURES "optimizers.json");
  const nlohmann::json fixture = nlohmann::json::parse(file);
  const std::vector<float> start = fixture["start"];
  for (auto [name, update] : optimizers) {
    CAPTURE(std::string(name));
    update.weight_decay = fixture["weight_decay"];
    ParameterStore store;
    const Parameter& weight =
        store.add(store.unit("unit"), "weight", {static_cast<int64_t>(start.size())}, Init::zeros(),
                  {.decay = true});
    Engine engine(store, Device::cpu(), {.update = update, .clip_norm = 0.0f});
    engine.write(weight, Engine::State::master, start);
    for (const std::vector<float> gradient : fixture["gradients"]) {
      run_micro_batch(engine, {{&weight, gradient}});
      engine.step(fixture["rate"]);
    }
    const std::vector<float> ours = engine.read(weight, Engine::State::master);
    const std::vector<double> torch = fixture["results"][name];
    for (size_t i = 0; i < torch.size(); ++i) {
      CAPTURE(i);
      CHECK(std::abs(ours[i] - torch[i]) <=
            1e-6);  // values up to 2.5, a few roundings of each step
    }
  }
}

TEST_CASE(
    "an optimizer allocates and saves its own moments and refuses another optimizer's checkpoint") {
  for (const NamedRule& rule : named_rules()) {
    CAPTURE(std::string(rule.name));
    CHECK(zero::moments_of(rule.update) == rule.moments);
    const TemporaryFolder folder;
    const Toy toy;
    Engine engine(toy.store, Device::cpu(), {.compute = DType::bf16, .update = rule.update});
    const int64_t trainable = 7 + 5 * 31 + 129 + 65;
    CHECK(engine.resting_bytes().optimizer == (1 + rule.moments) * trainable * 4);
    train_step(engine, 0);
    const auto moment1 = engine.read(toy.weight, Engine::State::moment1);
    const auto moment2 = engine.read(toy.weight, Engine::State::moment2);
    const size_t numel = 5 * 31;
    CHECK(moment1.size() == (rule.moments > 0 ? numel : 0));
    CHECK(moment2.size() == (rule.moments > 1 ? numel : 0));
    zero::save_checkpoint(folder.path(), engine, {.steps = 1, .micro_batches = 2});
    const auto reader = zero::open_checkpoint(folder.path());
    size_t states = 0;
    for (const auto& piece : reader->manifest().pieces) states += piece.parameter == "a.weight";
    CHECK(states == static_cast<size_t>(1 + rule.moments));
    CHECK(reader->damages().empty());
    for (const NamedRule& other : named_rules()) {
      if (other.moments == rule.moments && other.update.rule == rule.update.rule) continue;
      CAPTURE(std::string(other.name));
      Engine next(toy.store, Device::cpu(), {.update = other.update});
      const std::string before = next.parameter_hash();
      const auto with_moments = [](const std::string& name, const NamedRule& named) {
        const char* const moments[] = {"no moments", "moment1", "moment1 and moment2"};
        return name + " with " + moments[named.moments];
      };
      const bool is_adam = rule.update.rule == OptimizerRule::adam;
      const std::string saved_by = is_adam ? "adam or adamw" : name_of(rule.update.rule);
      CHECK(message_of<ConfigError>([&] { zero::load_checkpoint(folder.path(), next); }) ==
            "load: " + (folder / "step_1") + " was saved by " + with_moments(saved_by, rule) +
                "; expected " + with_moments(zero::optimizer_name(other.update), other) +
                ", as this engine has; try the optimizer that saved it, or load its weights alone "
                "(--init)");
      CHECK(next.parameter_hash() == before);
    }
  }
}

TEST_CASE("a plan equals its run for every optimizer, also with a skipped step") {
  for_cover(
      [](const NamedRule& rule, int stage, Space space, int skipped) {
        INFO(std::string(rule.name), ", stage ", stage, ", ", name_of(space));
        const Program program = [&](Communicator& ranks, const Device& device) {
          const MatrixToy toy;
          Engine engine(toy.store, ranks, device,
                        {.stage = stage,
                         .compute = DType::bf16,
                         .update = rule.update,
                         .offload = {.optimizer = space, .sub_group_size = 256}});
          for (int step = 0; step < 3; ++step) {
            const float value = step == skipped ? INFINITY : 1.0f;
            Gradients gradients;
            for (const auto& parameter : toy.store.parameters())
              gradients[parameter.get()].assign(static_cast<size_t>(parameter->shape.numel()),
                                                value);
            run_micro_batch(engine, gradients);
            const zero::StepResult result = engine.step(1e-3f);
            if (device.type() != Device::Type::meta) CHECK(result.skipped == (step == skipped));
          }
        };
        check_planned(3, program, {.swap = {.directory = "/tmp"}});
      },
      all_rules(), std::vector{0, 1, 3}, std::vector{Space::device, Space::host, Space::file},
      std::vector{0, 1});
}

TEST_CASE("a skipped step changes no state of any optimizer, before and after its first step") {
  for (const NamedRule& rule : all_rules()) {
    CAPTURE(std::string(rule.name));
    const MatrixToy toy;
    Engine engine(toy.store, Device::cpu(), {.update = rule.update});
    std::vector<float> gradient(5 * 31, 1.0f);
    gradient[3] = std::nanf("");
    for (int step = 0; step < 2; ++step) {
      const States before = states_of(toy, engine);
      run_micro_batch(engine, {{&toy.wide, gradient}});
      CHECK(engine.step(1e-2f).skipped);
      CHECK((states_of(toy, engine) == before));
      train_step(engine, step);
      CHECK((states_of(toy, engine) != before));
    }
  }
}

TEST_CASE("a snapshot that another thread reads during a step has the states from before it") {
  for (const NamedRule& rule : all_rules()) {
    CAPTURE(std::string(rule.name));
    const MatrixToy toy;
    Engine engine(toy.store, Device::cpu(), {.update = rule.update});
    train_step(engine, 0);
    const States before = states_of(toy, engine);
    States read;
    zero::Snapshot snapshot(engine);
    std::mutex mutex;
    std::condition_variable changed;
    bool stepped = false;
    std::thread reader([&] {
      // Before each piece the reader waits until the step has ended, at most 10 ms.
      for (size_t i = 0; i < snapshot.pieces().size(); ++i) {
        {
          std::unique_lock lock(mutex);
          changed.wait_for(lock, std::chrono::milliseconds(10), [&] { return stepped; });
        }
        const zero::Snapshot::Piece& piece = snapshot.pieces()[i];
        snapshot.read(i, [&](std::span<const float> part) {
          std::vector<float>& values = read[{piece.parameter, piece.state}];
          values.insert(values.end(), part.begin(), part.end());
        });
      }
    });
    train_step(engine, 1);
    {
      const std::lock_guard lock(mutex);
      stepped = true;
    }
    changed.notify_all();
    reader.join();
    for (const auto& [key, values] : before)
      if (!values.empty()) CHECK(read[key] == values);
    CHECK((states_of(toy, engine) != before));
  }
}

TEST_CASE("optimizer options that are out of range or belong to another optimizer are refused") {
  using enum OptimizerRule;
  const std::pair<UpdateOptions, std::string> refused[] = {
      {{.rule = sgd, .momentum = 1.0f}, "momentum is 1.000000; expected a number in [0, 1)"},
      {{.rule = sgd, .momentum = 0.9f, .dampening = 1.5f},
       "dampening is 1.500000; expected a number in [0, 1]"},
      {{.rule = sgd, .nesterov = true},
       "nesterov is on, momentum is 0.000000 and dampening 0.000000; expected a momentum above 0 "
       "and no dampening; try momentum 0.9 (--momentum)"},
      {{.momentum = 0.9f},
       "momentum is 0.900000, the optimizer is adamw; expected sgd, or momentum 0; try rule "
       "sgd (--optimizer sgd)"},
      {{.nesterov = true},
       "nesterov is on, the optimizer is adamw; expected sgd; try rule sgd (--optimizer sgd)"},
      {{.rule = muon, .decoupled = false},
       "decoupled is off, the optimizer is muon; expected it on: an orthogonal step hides weight "
       "decay that is added to the gradient"},
      {{.rule = muon, .momentum = 0.5f},
       "momentum is 0.500000, the optimizer is muon; expected sgd, or momentum 0; try "
       "update.muon.momentum (--muon-momentum)"},
      {{.rule = muon, .muon = {.momentum = 1.0f}},
       "muon.momentum is 1.000000; expected a number in [0, 1)"},
      {{.rule = muon, .muon = {.adam_rate = -1.0f}},
       "muon.adam_rate is -1.000000; expected a finite number from 0"},
      {{.rule = adafactor, .decoupled = false},
       "decoupled is off, the optimizer is adafactor; expected it on: a step does not grow with "
       "the gradient, and so it hides weight decay that is added to it"},
      {{.rule = adafactor, .momentum = 0.5f},
       "momentum is 0.500000, the optimizer is adafactor; expected sgd, or momentum 0; try "
       "rule sgd (--optimizer sgd)"},
      {{.rule = adafactor, .adafactor = {.beta2_decay = 0.5f}},
       "adafactor.beta2_decay is 0.500000; expected a finite number of 0 or less"},
      {{.rule = adafactor, .adafactor = {.epsilon1 = 0.0f}},
       "adafactor.epsilon1 is 0.000000; expected a finite number above 0"},
      {{.rule = adafactor, .adafactor = {.epsilon2 = -1.0f}},
       "adafactor.epsilon2 is -1.000000; expected a finite number from 0"},
      {{.rule = adafactor, .adafactor = {.clip = 0.5f}},
       "adafactor.clip is 0.500000; expected a finite number from 1"}};
  for (const auto& [update, message] : refused)
    CHECK(message_of<ConfigError>([&] { validate(Config{.update = update}); }) ==
          "config: update." + message);
}
