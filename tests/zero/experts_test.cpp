// The example with experts on four ranks, beside PyTorch: tests/reference/make_experts_fixtures.py.
#define main experts_program
#include "tools/examples/experts.cpp"
#undef main

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/runtime/comm/ranks.h"

namespace {

std::vector<float> wave(double scale, double phase, int64_t numel) {
  std::vector<float> values;
  for (int64_t i = 0; i < numel; ++i)
    values.push_back(static_cast<float>(scale * std::sin(static_cast<double>(i) + phase)));
  return values;
}

double difference(const nlohmann::json& expected, const std::vector<float>& values) {
  testing::expect(expected.size() == values.size(), "gradients of another size");
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i)
    largest = std::max(largest, std::abs(expected[i].get<double>() - double(values[i])));
  return largest;
}

}  // namespace

TEST_CASE("the first gradients of experts on four ranks are PyTorch's") {
  std::ifstream file(ZG_FIXTURES "experts.json");
  const auto expected = nlohmann::json::parse(file);
  CHECK(expected.at("passed") > 0);  // tokens beyond the capacity
  std::vector<double> differences(4);
  run_local(4, [&](Communicator& ranks, const Device& device) {
    const int rank = ranks.rank();
    const Shared shared(ranks.size());
    const Expert expert;
    zero::Engine engine(shared.store, ranks, device, {.stage = 2, .clip_norm = 0});
    Values values(expert.store, initial_weights(expert.store, 1), device);
    using State = zero::Engine::State;
    engine.write(shared.input, State::master, wave(0.6, 0, width * width));
    engine.write(shared.router, State::master, wave(0.9, 1, 4 * width));
    for (const auto& [parameter, phase] : {std::pair(&expert.up, 2), std::pair(&expert.down, 7)})
      values.set(*parameter,
                 Tensor::from(wave(0.5, phase + rank, width * hidden), parameter->shape, device));
    const Var x = Tensor::from(wave(1.5, 11 + rank, 24 * width), {24, width}, device);
    Tape tape(device, {&engine, &values});
    engine.backward(tape, mse(mixture(tape, shared, expert, x, ranks), zg::abs(x)));
    double& largest = differences[static_cast<size_t>(rank)];
    for (const auto* parameter : {&shared.input, &shared.router})
      largest = std::max(largest, difference(expected.at("shared").at(parameter->name),
                                             engine.read(*parameter, State::gradient)));
    for (const auto& [name, gradient] : values.gradients())
      largest =
          std::max(largest, difference(expected.at("experts")[static_cast<size_t>(rank)].at(name),
                                       gradient.to_host<float>()));
    testing::expect(values.gradients().size() == 2, "gradients of the expert");
  });
  for (const double largest : differences) CHECK(largest < 1e-5);
}
