// Direct preference optimisation with a frozen reference: a copy of the first weights.
#include <cstdio>
#include <vector>

#include "zerograd/autograd/values.h"
#include "zerograd/models/data/random_stream.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/zero/values_optimizer.h"

using namespace zg;

constexpr int64_t vocabulary = 12, prompt = 4, answer = 3, text = prompt + answer, pairs = 8;

/// [2 pairs, text]: answers of even tokens, which are preferred to those of odd ones after them.
Tensor batch(uint64_t step) {
  std::vector<int32_t> ids;
  models::RandomStream answers(1, "answers", step);
  for (const int odd : {0, 1}) {
    models::RandomStream prompts(1, "prompts", step);
    for (int64_t row = 0; row < pairs; ++row)
      for (int64_t t = 0; t < text; ++t)
        ids.push_back(static_cast<int32_t>(t < prompt ? prompts.below(vocabulary)
                                                      : 2 * answers.below(vocabulary / 2) + odd));
  }
  return Tensor::from(ids, {2 * pairs, text}, Device::cpu());
}

Var log_probabilities(const models::GPT& model, Tape& tape, const Tensor& ids) {
  const Var logits = model.logits(tape, slice(ids, 1, 0, text - 1).value());
  const Var answers = slice(ids, 1, prompt, text);
  return -sum(cross_entropy(slice(logits, 1, prompt - 1, text - 1), answers.value(),
                            {.reduction = Reduction::none}),
              1);
}

int main() {
  ParameterStore store;
  const models::GPT model(store, {.vocabulary = vocabulary, .block_size = text - 1});
  Values policy(store, initial_weights(store, 1), Device::cpu()), reference = policy.copy();
  zero::ValuesOptimizer optimizer(policy, {.weight_decay = 0.0f});
  double loss_value = 0;
  for (uint64_t step = 0; step < 40; ++step) {
    const Tensor ids = batch(step);
    Tape tape = policy.tape(), frozen = reference.inference_tape();
    const Var before = log_probabilities(model, frozen, ids);
    const Var ratios = log_probabilities(model, tape, ids) - before.value();
    const Var margins = 0.5 * (slice(ratios, 0, 0, pairs) - slice(ratios, 0, pairs, 2 * pairs));
    const Var loss = mean(log1p(exp(-margins)));  // -log(sigmoid(margins))
    tape.backward(loss);
    optimizer.step(0.01f);
    loss_value = loss.value().item();
  }
  std::printf("preferences: loss %.4f after 40 steps, 0.6931 before\n", loss_value);
  return loss_value < 0.2 ? 0 : 1;
}
