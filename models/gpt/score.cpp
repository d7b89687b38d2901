#include "zerograd/models/gpt/score.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

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

/// The numbers of every rank, in rank order.
std::vector<std::vector<int32_t>> gather(Communicator* ranks, const std::vector<int32_t>& own) {
  if (!ranks || ranks->size() == 1) return {own};
  const auto* bytes = reinterpret_cast<const char*>(own.data());
  std::vector<std::vector<int32_t>> all;
  for (const std::string& text : gather_texts(*ranks, {bytes, own.size() * sizeof(int32_t)})) {
    all.emplace_back(text.size() / sizeof(int32_t));
    std::memcpy(all.back().data(), text.data(), text.size());
  }
  return all;
}

}  // namespace

Score score(const GPT& model, const std::function<Tape()>& make_tape, const Dataset& dataset,
            Split split, int64_t samples, int64_t at_once, Communicator* ranks) {
  const int64_t asked = dataset.question_length();
  if (asked == 0)
    throw ConfigError("score: this dataset has no questions; expected the sort or adder data");
  if (at_once < 1) raise<ConfigError>("score: at_once: expected 1 sample or more, got {}", at_once);
  Score score{.total = std::min(samples, dataset.epoch_samples(split))};
  const int64_t answered = dataset.block_size() + 1 - asked;
  at_once = std::min(at_once, std::max<int64_t>(score.total, 1));
  const int64_t batches = (score.total + at_once - 1) / at_once;
  const int64_t size = ranks ? ranks->size() : 1;

  std::vector<int32_t> own{0};  // whether logits were unusable, then the answers
  SamplingOptions greedy{.temperature = 0.0};
  if (size > 1)  // generate() would throw on this rank alone, while the others wait for its weights
    greedy.process = [&](std::span<float> logits, std::span<const int32_t>) {
      if (std::ranges::none_of(logits, [](float l) { return std::isnan(l); }) &&
          std::isfinite(std::ranges::max(logits)))
        return;
      own[0] = 1;
      std::ranges::fill(logits, 0.0f);
    };
  for (int64_t round = 0; round * size < batches; ++round) {
    const int64_t batch = round * size + (ranks ? ranks->rank() : 0);
    const int64_t first = std::min(batch, batches - 1) * at_once;  // beyond the end: for its passes
    std::vector<std::vector<int32_t>> questions;
    for (int64_t i = first; i < std::min(first + at_once, score.total); ++i) {
      questions.push_back(tokens_of(dataset, split, i));
      questions.back().resize(static_cast<size_t>(asked));
    }
    for (const auto& row : generate(model, make_tape, questions, answered, greedy))
      if (batch < batches) own.insert(own.end(), row.begin() + asked, row.end());
  }
  const std::vector<std::vector<int32_t>> answers = gather(ranks, own);
  for (const std::vector<int32_t>& of_rank : answers)
    if (of_rank[0])  // throws as on one rank
      sample_token(std::array{std::numeric_limits<float>::quiet_NaN()}, greedy, 0);

  for (int64_t i = 0; i < score.total; ++i) {
    const int64_t batch = i / at_once, place = batch / size * at_once + i % at_once;
    const auto answer = answers[static_cast<size_t>(batch % size)].begin() + 1 + place * answered;
    const std::vector<int32_t> expected = tokens_of(dataset, split, i);
    const auto question_end = expected.begin() + asked;
    if (std::equal(question_end, expected.end(), answer))
      ++score.correct;
    else if (score.mistakes.size() < mistakes_kept)
      score.mistakes.push_back({.question = {expected.begin(), question_end},
                                .answer = {answer, answer + answered},
                                .expected = {question_end, expected.end()}});
  }
  return score;
}

double mean_loss(const GPT& model, const std::function<Tape()>& make_tape, const Dataset& dataset,
                 Split split, const Device& device, int64_t batch, int64_t batches) {
  const int64_t whole = dataset.epoch_samples(split);
  if (whole == 0 || batch < 1)
    raise<ConfigError>("mean_loss: expected a split and a batch of 1 sample or more, got {} and {}",
                       whole, batch);
  const bool is_part = batches > 0 && batches <= whole / batch;
  const int64_t samples = is_part ? batch * batches : whole;
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
