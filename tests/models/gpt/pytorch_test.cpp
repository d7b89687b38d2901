#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/models/gpt/gpt_case.h"
#include "zerograd/models/data/data.h"
#include "zerograd/runtime/storage/safetensors.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

const std::string pytorch_fixtures = ZG_FIXTURES;

double norm(const std::vector<double>& a, const std::vector<float>& b, double scale_of_b) {
  double squares = 0.0;
  for (size_t i = 0; i < a.size(); ++i)
    squares += (a[i] - scale_of_b * b[i]) * (a[i] - scale_of_b * b[i]);
  return std::sqrt(squares);
}

}  // namespace

TEST_CASE("loss and gradients of a GPT step match PyTorch") {
  const nlohmann::json expected =
      nlohmann::json::parse(std::ifstream(pytorch_fixtures + "losses.json"));
  const SafetensorsReader weights(pytorch_fixtures + "weights.safetensors"),
      gradients(pytorch_fixtures + "gradients.safetensors");
  const auto data = token_dataset(
      pytorch_fixtures + "tokens.bin",
      {.block_size = expected["block_size"], .validation_fraction = 0, .order = Order::sequential});
  CHECK(data->vocabulary() == expected["vocabulary"].get<int64_t>());
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    GPTCase model({.layers = expected["layers"],
                   .heads = expected["heads"],
                   .width = expected["width"],
                   .vocabulary = expected["vocabulary"],
                   .block_size = expected["block_size"],
                   .dropout = 0.0f},
                  device);
    REQUIRE(weights.entries().size() == model.store.parameters().size());
    for (const auto& parameter : model.store.parameters()) {
      const std::vector<float> values = weights.read_floats(parameter->name);
      REQUIRE(static_cast<int64_t>(values.size()) == parameter->shape.numel());
      model.source.at_rest(*parameter).assign(values.begin(), values.end());
    }
    const Batch batch = data->batch(Split::train, 0, expected["batch_size"], device);
    Tape tape = model.tape();
    const Var loss = model.gpt.loss(tape, batch.ids, batch.targets, {});
    // Both sides are f32, u = 2^-24. The loss is a mean of 512 numbers near 5.5, each known to a
    // few u: 8 u * 5.5 covers both.
    CHECK(std::fabs(loss.value().item() - expected["losses"][0].get<double>()) < 8 * 5.5 * 0x1p-24);
    tape.backward(loss);
    for (const auto& parameter : model.store.parameters()) {
      CAPTURE(parameter->name);
      const std::vector<double>& gradient = model.source.gradients[parameter.get()];
      const std::vector<float> reference = gradients.read_floats(parameter->name);
      REQUIRE(gradient.size() == reference.size());
      // About 100 roundings lie between a weight and its gradient. Their errors add up to about
      // sqrt(100) u on each side, and LayerNorm and softmax subtract numbers a few times larger: 64
      // u.
      CHECK(norm(gradient, reference, 1.0) < 64 * 0x1p-24 * norm(gradient, reference, 0.0));
    }
  }
}
