// Every optimizer keeps the engine's promises: bits, plans, checkpoints.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/cover.h"
#include "tests/support/error_message.h"
#include "tests/support/planned.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/training_run.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/error.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"

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
      {"adamw, groups", {.groups = {{"*weight", 0.25f, 0.5f}}}, 2},
      {"lion", {.rule = lion, .beta2 = 0.99f}, 1},
      {"sgd", {.rule = sgd, .decoupled = false}, 0},
      {"sgd, momentum", {.rule = sgd, .momentum = 0.9f, .dampening = 0.5f, .decoupled = false}, 1},
      {"sgd, nesterov", {.rule = sgd, .momentum = 0.9f, .nesterov = true, .decoupled = false}, 1}};
}

}  // namespace

TEST_CASE(
    "each optimizer gives the same parameter hash for every stage, rank count, offload and "
    "restart") {
  using enum Space;
  const zero::OffloadOptions places[] = {{},
                                         {.optimizer = host},
                                         {.optimizer = file, .sub_group_size = 64},
                                         {.gradient = host},
                                         {.optimizer = host, .optimizer_ratio = 0.5}};
  std::vector<std::pair<Config, std::string>> plain;  // with the hash of one rank
  for (const NamedRule& rule : named_rules())
    for (const DType compute : {DType::f32, DType::bf16}) {
      INFO(std::string(rule.name), ", ", name_of(compute));
      const Config config{
          .compute = compute, .update = rule.update, .param_persistence_threshold = 20};
      const std::string hash = train_on_ranks(config, {}).hash;
      for (const auto& other : plain) CHECK(hash != other.second);  // the rule has an effect
      plain.emplace_back(config, hash);
    }
  for_cover(
      [&](const std::pair<Config, std::string>& rule, int stage, int ranks,
          const zero::OffloadOptions& offload) {
        INFO("setting ", &rule - plain.data());
        INFO(name_of(rule.first.update.rule), ", stage ", stage, ", ranks ", ranks);
        Config config = rule.first;
        config.stage = stage;
        config.offload = offload;
        CHECK(train_on_ranks(config, {.ranks = ranks}).hash == rule.second);
      },
      plain, std::vector{0, 1, 2, 3}, std::vector{1, 2, 3, 4}, places);
  for (const auto& [rule, expected] : plain)
    for (const int stage : {0, 3}) {
      INFO(name_of(rule.update.rule), ", stage ", stage);
      const TemporaryFolder folder;
      Config config = rule;
      config.stage = stage;
      train_on_ranks(config, {.ranks = 3, .end = 2, .directory = folder.path()});
      zero::verify_checkpoint(folder / "step_2");
      config.stage = 3 - stage;
      config.offload = {.optimizer = host};
      CHECK(train_on_ranks(config, {.ranks = 2, .first = 2, .directory = folder.path()}).hash ==
            expected);
    }
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

TEST_CASE("a plan equals its run for every optimizer") {
  for (const NamedRule& rule : named_rules())
    for (const int stage : {0, 1, 3})
      for (const Space space : {Space::device, Space::host, Space::file}) {
        INFO(std::string(rule.name), ", stage ", stage, ", ", name_of(space));
        const Program program = [&](Communicator& ranks, const Device& device) {
          ParameterStore store;
          const Unit& unit = store.unit("layer");
          const Parameter& weight =
              store.add(unit, "weight", {33, 70}, Init::normal(0.1f), {.decay = true});
          Engine engine(store, ranks, device,
                        {.stage = stage,
                         .compute = DType::bf16,
                         .update = rule.update,
                         .offload = {.optimizer = space, .sub_group_size = 256}});
          for (int step = 0; step < 2; ++step) {
            Tape tape = engine.tape();
            Var loss;
            {
              const Tape::Use use(tape, unit);
              const Var out =
                  linear(Tensor::full({4, 70}, 0.5, DType::bf16, device), tape.parameter(weight));
              loss = cast(mean(out * out), DType::f32);
            }
            engine.backward(tape, loss);
            engine.step(1e-3f);
          }
        };
        check_planned(2, program, {.swap = {.directory = "/tmp"}});
      }
}

TEST_CASE("optimizer options that are out of range or belong to another optimizer are refused") {
  const auto refusal = [](const UpdateOptions& update) {
    return message_of<ConfigError>([&] { validate(Config{.update = update}); });
  };
  using enum OptimizerRule;
  CHECK(refusal({.rule = sgd, .momentum = 1.0f}) ==
        "config: update.momentum is 1.000000; expected a number in [0, 1)");
  CHECK(refusal({.rule = sgd, .momentum = 0.9f, .dampening = 1.5f}) ==
        "config: update.dampening is 1.500000; expected a number in [0, 1]");
  CHECK(refusal({.rule = sgd, .nesterov = true}) ==
        "config: update.nesterov is on, momentum is 0.000000 and dampening 0.000000; expected a "
        "momentum above 0 and no dampening; try --momentum 0.9");
  CHECK(refusal({.momentum = 0.9f}) ==
        "config: update.momentum is 0.900000, the optimizer is adamw; expected sgd, or momentum 0; "
        "try "
        "--optimizer sgd");
  CHECK(refusal({.nesterov = true}) ==
        "config: update.nesterov is on, the optimizer is adamw; expected sgd; try --optimizer sgd");
}
