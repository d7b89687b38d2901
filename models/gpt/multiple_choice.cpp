#include "zerograd/models/gpt/multiple_choice.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "zerograd/models/gpt/gpt_layers.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

Tensor GPT::losses_at(Tape& tape, const Tensor& ids, const Tensor& places,
                      const Tensor& targets) const {
  if (tape.mode() != TapeMode::inference)
    throw TapeError("losses_at: expected a tape in inference mode; the losses have no gradients");
  if (ids.shape().rank() != 2 || ids.extent(1) > config().block_size)
    raise<ShapeError>(
        "losses_at: ids {} do not fit; expected [B, T] with T up to the block size {}", ids.shape(),
        config().block_size);
  if (places.shape().rank() != 2 || places.extent(0) != 1 || places.shape() != targets.shape())
    raise<ShapeError>("losses_at: places {} and targets {} do not fit; expected [1, N] both",
                      places.shape(), targets.shape());
  const nn::Pass whole{.all_tokens = true};
  const Tape::With outside(tape, whole);
  Var x = begin_stage(tape, *layers_, ids, /*first_position=*/0);
  const Tape::With pass(tape, with_tables(whole, *layers_, x, ids.extent(1)));
  for (const nn::UnitOf<Block>& block : layers_->blocks) x = block(nn::Residual{x}).sum();
  return end_stage(tape, *layers_, x, places.shape(), accumulator(part().activations),
                   [&](const Var& end) {
                     HeadUse use(tape, *layers_);
                     const Var rows = embedding(places, reshape(end, {-1, config().width}));
                     const Var normed = layers_->norm_f(rows);
                     const Var logits = layers_->lm_head.logits(normed);
                     return cross_entropy(logits, targets, {.reduction = Reduction::none}).value();
                   });
}

double ChoiceAccuracy::standard_error() const {
  const double p = fraction();
  return std::sqrt(p * (1.0 - p) / static_cast<double>(total - 1));
}

namespace {

std::string name_of(const ChoiceQuestion& question, size_t number) {
  return question.place.empty() ? fmt::format("question {}", number) : question.place;
}

void check(const ChoiceQuestion& question, const std::string& name, int64_t vocabulary,
           int64_t block_size) {
  const auto count = std::ssize(question.choices);
  if (question.answer < 0 || question.answer >= count)
    raise<ConfigError>("{}: the right ending is {}; expected an index into {} endings", name,
                       question.answer, count);
  for (int64_t i = 0; i < count; ++i) {
    const Choice& choice = question.choices[static_cast<size_t>(i)];
    const auto tokens = std::ssize(choice.tokens);
    if (choice.scored < 1 || choice.scored >= tokens || choice.characters < 1)
      raise<ConfigError>(
          "{}: endings[{}] has {} characters and {} of {} tokens; expected one or more of each, "
          "behind a context of one token or more",
          name, i, choice.characters, choice.scored, tokens);
    if (choice.scored > block_size)
      raise<ConfigError>(
          "{}: endings[{}] has {} tokens; expected at most the block size {}; try a "
          "larger one, if the model has the positions",
          name, i, choice.scored, block_size);
    const auto [low, high] = std::minmax_element(choice.tokens.begin(), choice.tokens.end());
    if (*low < 0 || *high >= vocabulary)
      raise<ConfigError>("{}: endings[{}]: token {}; expected 0 to {}, which the model knows", name,
                         i, *low < 0 ? *low : *high, vocabulary - 1);
  }
}

/// The last tokens of a choice that fit into a sequence and its last target.
struct Sequence {
  std::span<const int32_t> tokens;
  int64_t scored;
  double* sum;  ///< of the log-probabilities

  size_t length() const { return tokens.size() - 1; }
};

void score_batch(const GPT& model, const std::function<Tape()>& make_tape,
                 std::span<const Sequence> batch) {
  size_t longest = 0;
  for (const Sequence& sequence : batch) longest = std::max(longest, sequence.length());
  std::vector<int32_t> ids(batch.size() * longest), places, targets;
  for (size_t row = 0; row < batch.size(); ++row) {
    const Sequence& sequence = batch[row];
    const size_t first = row * longest, length = sequence.length();
    std::copy_n(sequence.tokens.begin(), length, ids.begin() + static_cast<int64_t>(first));
    for (size_t t = length - static_cast<size_t>(sequence.scored); t < length; ++t) {
      places.push_back(static_cast<int32_t>(first + t));
      targets.push_back(sequence.tokens[t + 1]);
    }
  }
  Tape tape = make_tape();
  const auto on_device = [&](const std::vector<int32_t>& values, const Shape& shape) {
    return Tensor::from(std::span(values), shape, tape.device());
  };
  const Shape scored{1, std::ssize(places)};
  const Tensor tokens = on_device(ids, {std::ssize(batch), static_cast<int64_t>(longest)});
  const Tensor where = on_device(places, scored);
  const Tensor wanted = on_device(targets, scored);
  const std::vector<double> losses = model.losses_at(tape, tokens, where, wanted).to_doubles();
  size_t next = 0;
  for (const Sequence& sequence : batch)
    for (int64_t t = 0; t < sequence.scored; ++t) *sequence.sum -= losses[next++];
}

/// The first choice with the largest sum / part.
template <class Part>
int64_t largest(const ChoiceQuestion& question, const std::vector<double>& sums, const Part& part) {
  size_t best = 0;
  const auto value = [&](size_t i) {
    return sums[i] / static_cast<double>(part(question.choices[i]));
  };
  for (size_t i = 1; i < sums.size(); ++i)
    if (value(i) > value(best)) best = i;
  return static_cast<int64_t>(best);
}

}  // namespace

ChoiceScores score_choices(const GPT& model, const std::function<Tape()>& make_tape,
                           const std::vector<ChoiceQuestion>& questions,
                           const ChoiceOptions& options) {
  const GPTConfig& config = model.config();
  const int64_t block_size = options.block_size > 0 ? options.block_size : config.block_size;
  if (options.at_once < 1 || block_size > config.block_size)
    raise<ConfigError>(
        "score_choices: expected 1 choice or more at once and a block size up to {}, got {} and {}",
        config.block_size, options.at_once, block_size);
  ChoiceScores scores;
  std::vector<Sequence> sequences;
  scores.questions.reserve(questions.size());  // sequences point into it
  for (size_t q = 0; q < questions.size(); ++q) {
    check(questions[q], name_of(questions[q], q), config.vocabulary, block_size);
    std::vector<double>& sums = scores.questions.emplace_back().sums;
    sums.resize(questions[q].choices.size());
    for (size_t i = 0; i < sums.size(); ++i) {
      const Choice& choice = questions[q].choices[i];
      const size_t most = static_cast<size_t>(block_size) + 1;
      const size_t kept = std::min(choice.tokens.size(), most);
      scores.cut += kept < choice.tokens.size() ? 1 : 0;
      sequences.push_back({std::span(choice.tokens).last(kept), choice.scored, &sums[i]});
    }
  }
  std::ranges::stable_sort(sequences, [](const Sequence& a, const Sequence& b) {
    return a.tokens.size() > b.tokens.size();
  });
  const auto at_once = static_cast<size_t>(options.at_once);
  for (size_t first = 0; first < sequences.size(); first += at_once)
    score_batch(model, make_tape,
                std::span(sequences).subspan(first, std::min(at_once, sequences.size() - first)));
  for (size_t q = 0; q < questions.size(); ++q) {
    ChosenEndings& chosen = scores.questions[q];
    for (size_t i = 0; i < chosen.sums.size(); ++i)
      if (std::isnan(chosen.sums[i]))
        raise<ConfigError>(
            "{}: endings[{}]: its log-probability is NaN; expected a number; the "
            "model's weights are not usable",
            name_of(questions[q], q), i);
    const auto count = [&](ChoiceAccuracy& accuracy, int64_t choice) {
      ++accuracy.total;
      accuracy.correct += choice == questions[q].answer ? 1 : 0;
    };
    chosen.by_sum = largest(questions[q], chosen.sums, [](const Choice&) { return 1; });
    chosen.by_character =
        largest(questions[q], chosen.sums, [](const Choice& choice) { return choice.characters; });
    chosen.by_token =
        largest(questions[q], chosen.sums, [](const Choice& choice) { return choice.scored; });
    count(scores.acc, chosen.by_sum);
    count(scores.acc_norm, chosen.by_character);
    count(scores.acc_token, chosen.by_token);
  }
  return scores;
}

}  // namespace zg::models
