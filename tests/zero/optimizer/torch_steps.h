#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/zero/toy.h"

// Steps of an engine beside those of torch.optim, in tests/reference/fixtures.
namespace zg::testing {

inline nlohmann::json torch_fixture(const std::string& name) {
  std::ifstream file(ZG_FIXTURES + name);
  return nlohmann::json::parse(file);
}

/// The parameters of a fixture after the steps of its gradients.
struct TorchSteps {
  ParameterStore store;
  std::vector<const Parameter*> parameters;
  zero::Engine engine;

  TorchSteps(const nlohmann::json& fixture, const ParameterStore::Options& options,
             const zero::UpdateOptions& update, float rate)
      : parameters(added(store, fixture, options)),
        engine(store, Device::cpu(), {.update = update, .clip_norm = 0.0f}) {
    for (size_t i = 0; i < parameters.size(); ++i)
      engine.write(*parameters[i], zero::Engine::State::master,
                   fixture["starts"][i].get<std::vector<float>>());
    for (const std::vector<std::vector<float>> of_step : fixture["gradients"]) {
      Gradients gradients;
      for (size_t i = 0; i < parameters.size(); ++i) gradients[parameters[i]] = of_step[i];
      run_micro_batch(engine, gradients);
      engine.step(rate);
    }
  }

 private:
  static std::vector<const Parameter*> added(ParameterStore& store, const nlohmann::json& fixture,
                                             const ParameterStore::Options& options) {
    std::vector<const Parameter*> parameters;
    const Unit& unit = store.unit("unit");
    for (const std::vector<int64_t> shape : fixture["shapes"])
      parameters.push_back(&store.add(unit, "parameter." + std::to_string(parameters.size()),
                                      Shape(std::span<const int64_t>(shape)), Init::zeros(),
                                      options));
    return parameters;
  }
};

/// The largest difference, as a share of the largest expected value if that is not 0.
inline double difference(const std::vector<float>& ours, const std::vector<double>& expected) {
  REQUIRE(ours.size() == expected.size());
  double worst = 0.0, largest = 0.0;
  for (size_t i = 0; i < ours.size(); ++i) {
    worst = std::max(worst, std::abs(ours[i] - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return largest > 0.0 ? worst / largest : worst;
}

}  // namespace zg::testing
