// A language model with a selective state space (Mamba, Gu and Dao 2023, arXiv:2312.00752): each
// token decides how much of the state is kept and what is added, and scan() computes the states of
// all tokens in log2(T) passes. It learns to name the last letter among noise. Planned, then run.
//   mamba [FOLDER]    also writes the first weights, batch and gradients there
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "zerograd/autograd/convolution.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/values.h"
#include "zerograd/models/data/random_stream.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/storage/tensor_files.h"
#include "zerograd/zero/values_optimizer.h"

namespace {

using namespace zg;

// Tokens below `noise` are noise, the others letters.
constexpr int64_t vocabulary = 8, noise = 4, tokens = 24, rows = 16, width = 16, inner = 32,
                  states = 8, steps = 200;

struct Model {
  ParameterStore store;
  const Unit& unit = store.unit("model");
  const Parameter& ids = add("ids", {vocabulary, width}, 0.5f);
  const Parameter& norm = store.add(unit, "norm", {width}, Init::ones());
  const Parameter& in = add("in", {2 * inner, width}, 0.2f);
  const Parameter& conv = add("conv", {inner, 1, 3}, 0.4f);
  const Parameter& conv_bias = add("conv_bias", {inner}, 0.1f);
  const Parameter& select = add("select", {2 * states, inner}, 0.2f);
  const Parameter& pace = add("pace", {inner, inner}, 0.2f);
  const Parameter& pace_bias = add("pace_bias", {inner}, 0.5f);
  const Parameter& log_decay = add("log_decay", {inner, states}, 0.5f);
  const Parameter& skip = store.add(unit, "skip", {inner}, Init::ones());
  const Parameter& out = add("out", {width, inner}, 0.2f);
  const Parameter& last_norm = store.add(unit, "last_norm", {width}, Init::ones());
  const Parameter& head = add("head", {vocabulary, width}, 0.2f);

  const Parameter& add(const char* name, const Shape& shape, float stddev) {
    return store.add(unit, name, shape, Init::normal(stddev));
  }

  /// ids [B, T]: the logits [B, T, vocabulary].
  Var operator()(Tape& tape, const Tensor& batch) const {
    const auto value = [&](const Parameter& parameter) { return tape.parameter(parameter); };
    const Var x = embedding(batch, value(ids));
    const std::vector<Var> halves =
        split(linear(rms_norm(x, value(norm)), value(in)), {inner, inner}, 2);
    const Var lines = conv1d(transpose(halves[0], 1, 2), value(conv), value(conv_bias),
                             {.groups = inner, .causal = true});
    const Var u = silu(transpose(lines, 1, 2));  // [B, T, inner]
    const std::vector<Var> selected = split(linear(u, value(select)), {states, states}, 2);
    const Var time = softplus(linear(u, value(pace), value(pace_bias)));
    // The states h[t] = kept[t] h[t - 1] + added[t], [B, T, inner, states].
    const Var decay = exp(value(log_decay));
    const Var kept = exp(neg(unsqueeze(time, 3) * decay));
    const Var added = unsqueeze(time * u, 3) * unsqueeze(selected[0], 2);
    const Var h = scan({kept, added}, 1, [](std::span<const Var> a, std::span<const Var> b) {
      const Var carried = b[0] * a[1];
      return std::vector<Var>{a[0] * b[0], carried + b[1]};
    })[1];
    const Var y = sum(h * unsqueeze(selected[1], 2), 3) + u * value(skip);
    const Var gate = silu(halves[1]);
    const Var mixed = x + linear(y * gate, value(out));
    return linear(rms_norm(mixed, value(last_norm)), value(head));
  }
};

double train(const Device& device, const std::string& folder) {
  const Model model;
  Values values(model.store, initial_weights(model.store, 1), device);
  zero::ValuesOptimizer optimizer(values, {.weight_decay = 0});
  double last_loss = 0;
  for (uint64_t step = 0; step < steps; ++step) {
    models::RandomStream random(1, "rows", step);
    std::vector<int32_t> drawn, targets;
    for (int64_t i = 0; i < rows * tokens; ++i) {
      const bool first = i % tokens == 0, is_letter = first || random.below(4) == 0;
      const int64_t id = is_letter ? noise + random.below(vocabulary - noise) : random.below(noise);
      drawn.push_back(static_cast<int32_t>(id));
      targets.push_back(is_letter ? drawn.back() : targets.back());
    }
    const Tensor ids = Tensor::from(drawn, {rows, tokens}, device);
    const Tensor letters = Tensor::from(targets, {rows, tokens}, device);
    Tape tape = values.tape();
    const Var loss = cross_entropy(model(tape, ids), letters);
    tape.backward(loss);
    if (step == 0 && !folder.empty()) {
      values.save(folder + "/mamba.weights.safetensors");
      save_safetensors(folder + "/mamba.batch.safetensors", {{"ids", ids}, {"letters", letters}});
      save_safetensors(folder + "/mamba.gradients.safetensors", values.gradients());
    }
    optimizer.step(0.01f);
    last_loss = loss.value().item();
  }
  return last_loss;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "";
  double loss = 0;
  const auto program = [&](auto&, const Device& device) { loss = train(device, folder); };
  const Plan plan = plan_ranks(1, program);
  run_ranks(1, program, {.expect = &plan});
  std::printf("mamba: loss %.4f after %d steps; %.4f by guessing\n", loss, static_cast<int>(steps),
              std::log(vocabulary - noise));
  return loss < 0.1 ? 0 : 1;
}
