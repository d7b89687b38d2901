#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/values.h"

// Shared by tests of Values: parameters that every op reads that knows stored matrices.
namespace zg::testing {

/// A table with more rows than are converted at a time (2^18 elements for a product with few rows,
/// 2^20 for others), and a smaller matrix with a bias.
struct ValuesNet {
  static constexpr int64_t width = 512, tokens = 2200, hidden = 600, positions = 16;
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  const Parameter& table = store.add(unit, "table", {tokens, width}, Init::normal(0.5f));
  const Parameter& places = store.add(unit, "places", {positions, width}, Init::normal(0.5f));
  const Parameter& up = store.add(unit, "up", {hidden, width}, Init::normal(0.1f));
  const Parameter& gate = store.add(unit, "gate", {hidden, width}, Init::normal(0.1f));
  const Parameter& bias = store.add(unit, "bias", {hidden}, Init::normal(0.1f));
  const Parameter& down = store.add(unit, "down", {width, hidden}, Init::normal(0.1f));

  /// Every op that reads a matrix, on [1, rows] tokens.
  std::vector<Tensor> run(Tape& tape, int64_t rows) const {
    std::vector<int32_t> numbers, next;
    for (int64_t i = 0; i < rows; ++i) {
      numbers.push_back(static_cast<int32_t>(i * 7 % tokens));
      next.push_back(static_cast<int32_t>((i * 31 + 5) % tokens));
    }
    const Tensor ids = Tensor::from(numbers, {rows / positions, positions}, tape.device());
    const Tensor targets = Tensor::from(next, ids.shape(), tape.device());
    const Tape::Use use(tape, unit);
    const auto value = [&](const Parameter& parameter) { return tape.parameter(parameter); };
    const Var x = embedding(ids, value(table), value(places));
    const Var plain = embedding(ids, value(table));
    const Var fed = feed_forward(x, value(up), value(bias), value(down), {});
    const Var gated = gated_feed_forward(x, value(gate), value(up), value(down));
    const Var sum = add(add(fed, gated), plain);
    const Var hidden_layer = linear(sum, value(up), value(bias), Activation::gelu_erf);
    const Var logits = linear(sum, value(table));
    const Var loss = projection_cross_entropy(sum, value(table), targets);
    return {sum.value(), hidden_layer.value(), logits.value(), loss.value()};
  }
};

/// The values in `dtype`, as f32.
inline WeightSource rounded(const ValuesNet& net, DType dtype) {
  WeightSource weights = initial_weights(net.store, 7);
  const auto exact = weights.read_range;
  weights.read_range = [exact, dtype](const std::string& name, int64_t begin, int64_t count) {
    std::vector<float> values = *exact(name, begin, count);
    if (dtype == DType::bf16)
      for (float& value : values) value = static_cast<float>(bf16(value));
    if (dtype == DType::f16)
      for (float& value : values) value = static_cast<float>(f16(value));
    return std::optional(values);
  };
  for (const auto& parameter : net.store.parameters())
    weights.dtypes.emplace(parameter->name, dtype);
  return weights;
}

}  // namespace zg::testing
