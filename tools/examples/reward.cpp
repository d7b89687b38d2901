// A reward model: a Llama without its own head, a reward head that reads two of its hidden states,
// and the loss of pairs of Bradley and Terry, as for RLHF (Ouyang et al. 2022, arXiv:2203.02155).
// It learns that rising sequences of digits are better. Planned, then run.
//   reward [FOLDER]    also writes the first weights, batch and gradients there
#include <cstdio>
#include <string>
#include <vector>

#include "zerograd/autograd/values.h"
#include "zerograd/models/data/random_stream.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/storage/tensor_files.h"
#include "zerograd/zero/values_optimizer.h"

namespace {

using namespace zg;

constexpr int64_t pairs = 16, tokens = 6, digits = 10, steps = 60;

models::GPTConfig config() {
  models::GPTConfig config = models::GPTConfig::of(models::Family::llama);
  config.layers = 2;
  config.heads = 2;
  config.width = 16;
  config.hidden = 32;
  config.vocabulary = digits;
  config.block_size = tokens;
  return config;
}

struct RewardModel {
  ParameterStore store;
  // A part that ends with the last layer has no head.
  models::GPT llama{store, config(), {.end_layer = config().layers}};
  const Unit& unit = store.unit("reward");
  const Parameter& weight =
      store.add(unit, "reward.weight", {1, 2 * config().width}, Init::normal(0.1f));

  /// [B, 1], of the last token's states in the middle and at the end.
  Var operator()(Tape& tape, const Tensor& ids) const {
    Var middle;
    const nn::BlockHook hook = [&](int64_t layer, const Var& x) {
      if (layer == 1) middle = x;
      return x;
    };
    const Var last = llama.hidden(tape, ids, {}, /*checkpointing=*/false, {}, {.hook = hook});
    const Var both = slice(concat({middle, last}, 2), 1, tokens - 1, tokens);
    return linear(reshape(both, {ids.extent(0), -1}), tape.parameter(weight));
  }
};

/// [2 pairs, tokens]: first the better sequences, then the same digits in another order.
Tensor batch(int64_t step, const Device& device) {
  std::vector<int32_t> better, worse;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    models::RandomStream random(1, "reward", static_cast<uint64_t>(step * pairs + pair));
    const auto start = static_cast<int32_t>(random.below(digits - tokens + 1));
    const int64_t turn = 1 + random.below(tokens - 1);
    for (int64_t t = 0; t < tokens; ++t) {
      better.push_back(start + static_cast<int32_t>(t));
      worse.push_back(start + static_cast<int32_t>((t + turn) % tokens));
    }
  }
  better.insert(better.end(), worse.begin(), worse.end());
  return Tensor::from(better, {2 * pairs, tokens}, device);
}

double train(const Device& device, const std::string& folder) {
  const RewardModel model;
  Values values(model.store, initial_weights(model.store, 1), device);
  zero::ValuesOptimizer optimizer(values, {.rule = OptimizerRule::sgd, .weight_decay = 0});
  double loss_value = 0;
  for (int64_t step = 0; step < steps; ++step) {
    Tape tape = values.tape();
    const Tensor ids = batch(step, device);
    const Var rewards = model(tape, ids);
    const Var margin = slice(rewards, 0, 0, pairs) - slice(rewards, 0, pairs, 2 * pairs);
    const Var loss =  // -log(sigmoid(margin))
        binary_cross_entropy(margin, Tensor::full(margin.shape(), 1, DType::f32, device));
    loss_value = loss.value().item();
    tape.backward(loss);
    if (step == 0 && !folder.empty()) {
      values.save(folder + "/reward.weights.safetensors");
      save_safetensors(folder + "/reward.batch.safetensors", {{"ids", ids}});
      save_safetensors(folder + "/reward.gradients.safetensors", values.gradients());
    }
    values.clip_gradients(1.0);
    optimizer.step(0.5f);
  }
  return loss_value;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "";
  double loss = 0;
  const Program program = [&](Communicator&, const Device& device) {
    loss = train(device, folder);
  };
  const Plan plan = plan_ranks(1, program);
  run_ranks(1, program, {.expect = &plan});
  std::printf("reward: loss %.4f after %lld steps\n", loss, static_cast<long long>(steps));
  return loss < 0.1 ? 0 : 1;
}
