#include "zerograd/models/gpt/score.h"

#include <algorithm>

#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

constexpr size_t mistakes_kept = 3;

/// Question and answer of one sample, joined.
std::vector<int32_t> tokens_of(const Dataset& dataset, Split split, int64_t index) {
  const size_t T = static_cast<size_t>(dataset.block_size());
  std::vector<int32_t> tokens(T + 1), targets(T);
  dataset.sample(split, index, tokens.data(), targets.data());
  tokens[T] = targets[T - 1];
  return tokens;
}

}  // namespace

Score score(const GPT& model, const std::function<Tape()>& make_tape, const Dataset& dataset,
            Split split, int64_t samples, int64_t at_once) {
  const int64_t asked = dataset.question_length();
  if (asked == 0)
    throw ConfigError("score: this dataset has no questions; expected the sort or adder data");
  if (at_once < 1) raise<ConfigError>("score: at_once: expected 1 sample or more, got {}", at_once);
  Score score{.total = std::min(samples, dataset.epoch_samples(split))};
  for (int64_t first = 0; first < score.total; first += at_once) {
    std::vector<std::vector<int32_t>> expected, questions;
    for (int64_t i = first; i < std::min(first + at_once, score.total); ++i) {
      expected.push_back(tokens_of(dataset, split, i));
      questions.emplace_back(expected.back().begin(), expected.back().begin() + asked);
    }
    const int64_t answered = dataset.block_size() + 1 - asked;
    const auto rows = generate(model, make_tape, questions, answered, {.temperature = 0.0});
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] == expected[i])
        ++score.correct;
      else if (score.mistakes.size() < mistakes_kept)
        score.mistakes.push_back({.question = questions[i],
                                  .answer = {rows[i].begin() + asked, rows[i].end()},
                                  .expected = {expected[i].begin() + asked, expected[i].end()}});
    }
  }
  return score;
}

double mean_loss(const GPT& model, const std::function<Tape()>& make_tape, const Dataset& dataset,
                 Split split, const Device& device, int64_t batch, int64_t batches) {
  const int64_t whole = dataset.epoch_samples(split);
  if (whole == 0 || batch < 1)
    raise<ConfigError>("mean_loss: expected a split and a batch of 1 sample or more, got {} and {}",
                       whole, batch);
  const int64_t samples = batches > 0 ? std::min(whole, batch * batches) : whole;
  double sum = 0.0, targets = 0.0;
  for (int64_t first = 0; first < samples; first += batch) {
    const int64_t count = std::min(batch, samples - first);
    const Batch data = dataset.batch(split, first, count, device);
    Tape tape = make_tape();
    const Var loss = model.loss(tape, data.ids, data.targets, {}, /*checkpointing=*/false,
                                {.starts = data.starts, .positions = data.positions});
    const auto weight = static_cast<double>(dataset.count_targets(split, first, count));
    sum += loss.value().item() * weight;
    targets += weight;
  }
  if (targets == 0.0)
    throw ConfigError("mean_loss: all targets of the samples are ignored; expected one or more");
  return sum / targets;
}

}  // namespace zg::models
