// Parameter groups: which one decides, torch.optim's numbers, what is refused.

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"
#include "tests/zero/matrix_toy.h"
#include "zerograd/zero/config.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using zero::parameter_groups;
using zero::ParameterGroup;
using zero::UpdateOptions;

namespace {

/// The toy's parameters after one step with the same gradients.
std::map<std::string, std::vector<float>> after_one_step(const UpdateOptions& update, float rate) {
  const MatrixToy toy;
  const std::vector<const Parameter*> trainable = {&toy.bias, &toy.table, &toy.wide, &toy.tall,
                                                   &toy.gain};
  Engine engine(toy.store, Device::cpu(), {.update = update, .clip_norm = 0.0f});
  run_micro_batch(engine, random_gradients(trainable, 3));
  engine.step(rate);
  std::map<std::string, std::vector<float>> values;
  for (const Parameter* parameter : trainable)
    values[parameter->name] = engine.read(*parameter, Engine::State::master);
  return values;
}

std::string refusal_of_groups(const std::string& text) {
  return message_of<ConfigError>([&] { parameter_groups(text); });
}

}  // namespace

TEST_CASE("parameter groups are read from text and written as they were read") {
  const std::string text = "*.bias:rate=2,decay=0;transformer.h.[01].*:rate=0.1;a:b:rate=1";
  const std::vector<ParameterGroup> groups = parameter_groups(text);
  REQUIRE(groups.size() == 3);
  CHECK(groups[0] == ParameterGroup{"*.bias", 2.0f, 0.0f});
  CHECK(groups[1] == ParameterGroup{"transformer.h.[01].*", 0.1f, {}});
  CHECK(groups[2].pattern == "a:b");
  CHECK(zero::text_of(groups) == text);
  CHECK(parameter_groups("x:decay=0.5")[0] == ParameterGroup{"x", 1.0f, 0.5f});
  const std::string by_adam = "x:rate=0.5,decay=0,optimizer=adamw";
  CHECK(parameter_groups(by_adam)[0] == ParameterGroup{"x", 0.5f, 0.0f, true});
  CHECK(zero::text_of(parameter_groups(by_adam)) == by_adam);
  CHECK(parameter_groups("").empty());
  CHECK(zero::text_of({}).empty());
}

TEST_CASE("an invalid parameter group is refused with the expected format") {
  for (const char* text : {"x", ":rate=1", "x:", "x:rate", "x:rate=", "x:rate=-1", "x:rate=nan",
                           "x:rate=1e99", "x:rate=1 ", "x:lr=1", "x:optimizer=lion",
                           "x:rate=1,rate=2", "x:rate=1,", "x:rate=1;;y:rate=1"}) {
    CAPTURE(text);
    const std::string refusal = refusal_of_groups(text);
    CHECK(refusal.find("expected PATTERN:rate=R,decay=D with numbers from 0") != refusal.npos);
  }
  CHECK(message_of<ConfigError>([] {
          validate(Config{.update = {.groups = {{"x", -1.0f}}}});
        }).find("the rate of a parameter group is -1") != std::string::npos);
  CHECK(message_of<ConfigError>([] {
          validate(Config{.update = {.groups = {{""}}}});
        }).find("the pattern of a parameter group is ''") != std::string::npos);
  CHECK(message_of<ConfigError>(
            [] { validate(Config{.update = {.groups = {{.pattern = "x", .by_adam = true}}}}); }) ==
        "config: parameter group 'x' says optimizer=adamw, the optimizer is adamw; expected "
        "muon, whose matrices a group can leave to adamw");
}

TEST_CASE("the first group that matches a name decides its rate and its weight decay") {
  using enum OptimizerRule;
  for (const OptimizerRule rule : {adam, lion, sgd, muon, adafactor}) {
    CAPTURE(std::string(name_of(rule)));
    const auto with = [&](std::vector<ParameterGroup> groups, float decay) {
      return UpdateOptions{.rule = rule, .weight_decay = decay, .groups = std::move(groups)};
    };
    // wide: a quarter of the rate; bias and gain: no update; table: more decay.
    const auto grouped =
        after_one_step(with({{"wide", 0.25f}, {"*i*", 0.0f}, {"a.*", 1.0f, 0.5f}}, 0.125f), 0.125f);
    const auto plain = after_one_step(with({}, 0.125f), 0.125f);
    const auto slow = after_one_step(with({}, 0.125f), 0.03125f);
    const auto decayed = after_one_step(with({}, 0.5f), 0.125f);
    CHECK(grouped.at("tall") == plain.at("tall"));
    CHECK(grouped.at("wide") == slow.at("wide"));
    CHECK(grouped.at("wide") != plain.at("wide"));
    CHECK(grouped.at("a.table") == decayed.at("a.table"));
    CHECK(grouped.at("a.table") != plain.at("a.table"));
    CHECK(grouped.at("z.bias") == std::vector<float>(7, 0.0f));
    CHECK(grouped.at("gain") == std::vector<float>(129, 1.0f));
  }
}

TEST_CASE("adam updates the hidden matrices of a group with by_adam, and muon the others") {
  const UpdateOptions muon{.rule = OptimizerRule::muon};
  UpdateOptions grouped = muon;
  grouped.groups = {{.pattern = "w*", .rate = 0.5f, .by_adam = true}};
  const auto both = after_one_step(grouped, 0.125f), by_muon = after_one_step(muon, 0.125f);
  CHECK(both.at("wide") == after_one_step({}, 0.0625f).at("wide"));
  for (const char* name : {"tall", "z.bias", "a.table", "gain"})
    CHECK(both.at(name) == by_muon.at(name));
  const MatrixToy toy;
  const Engine engine(toy.store, Device::cpu(), {.update = grouped});
  CHECK(engine.read(toy.wide, Engine::State::moment2).size() == 5 * 31);
  CHECK(engine.read(toy.tall, Engine::State::moment2).empty());
}

TEST_CASE("a parameter in a group gets the same values as with torch.optim") {
  std::ifstream file(ZG_FIXTURES "optimizers.json");
  const nlohmann::json fixture = nlohmann::json::parse(file);
  const std::vector<float> start = fixture["start"];
  const std::pair<const char*, UpdateOptions> optimizers[] = {
      {"adamw", {}}, {"sgd", {.rule = OptimizerRule::sgd, .momentum = 0.9f, .decoupled = false}}};
  for (auto [name, update] : optimizers) {
    CAPTURE(std::string(name));
    update.weight_decay = fixture["weight_decay"];
    update.groups = {{"own*", 0.3f, 0.4f}};
    ParameterStore store;
    const Unit& unit = store.unit("unit");
    const Shape shape{static_cast<int64_t>(start.size())};
    const Parameter& own = store.add(unit, "own", shape, Init::zeros());
    const Parameter& usual = store.add(unit, "usual", shape, Init::zeros(), {.decay = true});
    Engine engine(store, Device::cpu(), {.update = update, .clip_norm = 0.0f});
    for (const Parameter* parameter : {&own, &usual})
      engine.write(*parameter, Engine::State::master, start);
    for (const std::vector<float> gradient : fixture["gradients"]) {
      run_micro_batch(engine, {{&own, gradient}, {&usual, gradient}});
      engine.step(fixture["rate"]);
    }
    const std::string usual_name = name == std::string("sgd") ? "sgd, momentum" : name;
    for (const auto& [parameter, result] :
         {std::pair(&own, std::string(name) + ", group"), std::pair(&usual, usual_name)}) {
      const std::vector<float> ours = engine.read(*parameter, Engine::State::master);
      const std::vector<double> torch = fixture["results"][result];
      CAPTURE(result);
      for (size_t i = 0; i < torch.size(); ++i)
        CHECK(std::abs(ours[i] - torch[i]) <= 1e-6);  // as in update_rules_engine_test.cpp
    }
  }
}

TEST_CASE("a parameter group that applies to no parameter of the model is refused") {
  const Toy toy;
  const auto refusal = [&](std::vector<ParameterGroup> groups) {
    return message_of<ConfigError>(
        [&] { Engine(toy.store, Device::cpu(), {.update = {.groups = std::move(groups)}}); });
  };
  CHECK(refusal({{"*weight", 0.5f}, {"gain", 0.5f}}) == "nothing was thrown");
  CHECK(refusal({{"*weight", 0.5f}, {"weight", 0.5f}}) ==
        "config: parameter group 2 'weight' decides for no parameter; expected a pattern of names "
        "like 'z.bias' that no earlier group matches");
  CHECK(refusal({{"*", 0.5f}, {"gain", 0.5f}}).find("group 2 'gain'") != std::string::npos);
}
