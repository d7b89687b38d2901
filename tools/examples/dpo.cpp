// Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290): a Llama with adapters
// learns to prefer one answer. The frozen reference is the same model without its adapters, so no
// second copy is in memory. Planned, then run.
//   dpo [FOLDER]    also writes the first weights, batch and gradients there
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

constexpr int64_t pairs = 8, prompt = 4, answer = 3, tokens = prompt + answer - 1, steps = 40;
constexpr double beta = 0.5;

models::GPTConfig config() {
  models::GPTConfig config = models::GPTConfig::of(models::Family::llama);
  config.layers = 2;
  config.heads = 2;
  config.width = 16;
  config.hidden = 32;
  config.vocabulary = 12;
  config.block_size = tokens;
  return config;
}

/// [2 pairs, tokens]: preferred answers, then others; tokens of the prompt have no target.
struct Preferences {
  Tensor ids, targets;
};

/// Preferred: answers of even tokens. The others have odd ones.
Preferences batch(int64_t step, const Device& device) {
  std::vector<int32_t> ids, targets;
  for (int64_t row = 0; row < 2 * pairs; ++row) {
    models::RandomStream asked(1, "prompt", static_cast<uint64_t>(step * pairs + row % pairs));
    models::RandomStream answered(1, "answer", static_cast<uint64_t>(2 * step * pairs + row));
    std::vector<int64_t> text;
    for (int64_t t = 0; t < prompt; ++t) text.push_back(asked.below(config().vocabulary));
    for (int64_t t = 0; t < answer; ++t)
      text.push_back(2 * answered.below(config().vocabulary / 2) + (row < pairs ? 0 : 1));
    ids.insert(ids.end(), text.begin(), text.end() - 1);
    for (int64_t t = 1; t <= tokens; ++t)
      targets.push_back(t < prompt ? -1 : static_cast<int32_t>(text[static_cast<size_t>(t)]));
  }
  const Shape shape{2 * pairs, tokens};
  return {Tensor::from(ids, shape, device), Tensor::from(targets, shape, device)};
}

/// [2 pairs]: log-probabilities of the answers.
Var log_probabilities(const models::GPT& model, Tape& tape, const Preferences& data,
                      bool adapters) {
  const Var logits = model.logits(tape, data.ids, {.adapters = adapters});
  return -sum(cross_entropy(logits, data.targets, {.reduction = Reduction::none}), 1);
}

double train(const Device& device, const std::string& folder) {
  ParameterStore store;
  const models::GPT model(store, config(), {},
                          {.rank = 4, .alpha = 8.0f, .targets = {"all-linear"}});
  Values values(store, initial_weights(store, 1), device);
  // A base has been trained before; here it is random, with logits of a trained one's size.
  const Parameter& head = *store.find("lm_head.weight");
  values.set(head, randn(head.shape, 1, "head", DType::f32, device));
  zero::ValuesOptimizer optimizer(values, {.rule = OptimizerRule::sgd, .weight_decay = 0});
  double loss_value = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const Preferences data = batch(step, device);
    Tape frozen = values.inference_tape();
    const Var reference = log_probabilities(model, frozen, data, /*adapters=*/false);
    Tape tape = values.tape();
    const Var policy = log_probabilities(model, tape, data, /*adapters=*/true);
    const Var ratio = policy - reference.value();
    const Var margin = beta * (slice(ratio, 0, 0, pairs) - slice(ratio, 0, pairs, 2 * pairs));
    const Var loss =  // -log(sigmoid(margin))
        binary_cross_entropy(margin, Tensor::full(margin.shape(), 1, DType::f32, device));
    loss_value = loss.value().item();
    tape.backward(loss);
    if (step == 0 && !folder.empty()) {
      values.save(folder + "/dpo.weights.safetensors");
      save_safetensors(folder + "/dpo.batch.safetensors",
                       {{"ids", data.ids}, {"targets", data.targets}});
      save_safetensors(folder + "/dpo.gradients.safetensors", values.gradients());
    }
    optimizer.step(0.3f);
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
  std::printf("dpo: loss %.4f after %lld steps, 0.6931 before\n", loss,
              static_cast<long long>(steps));
  return loss < 0.2 ? 0 : 1;
}
