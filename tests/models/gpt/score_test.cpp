#include "zerograd/models/gpt/score.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/models/gpt/gpt_case.h"
#include "tests/support/error_message.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

/// Questions of two tokens whose answers are a model's own; in every third sample the last token
/// of the answer is another one.
class OwnAnswers final : public Dataset {
 public:
  explicit OwnAnswers(GPTCase& model) : model_(model) {}
  int64_t vocabulary() const override { return 7; }
  int64_t block_size() const override { return 6; }
  int64_t epoch_samples(Split split) const override { return split == Split::train ? 1100 : 8; }
  int64_t question_length() const override { return 2; }
  void sample(Split, int64_t index, int32_t* ids, int32_t* targets) const override {
    const std::vector<int32_t> question{static_cast<int32_t>(index % 7),
                                        static_cast<int32_t>(index / 7 % 7)};
    const auto make_tape = [&] { return model_.tape(TapeMode::inference); };
    std::vector<int32_t>& tokens = answered_[question];
    if (tokens.empty())
      tokens = generate(model_.gpt, make_tape, {question}, 5, {.temperature = 0.0})[0];
    std::copy_n(tokens.begin(), 6, ids);
    std::copy_n(tokens.begin() + 1, 6, targets);
    if (index % 3 == 0) targets[5] = (targets[5] + 1) % 7;
  }

 private:
  GPTCase& model_;
  mutable std::map<std::vector<int32_t>, std::vector<int32_t>> answered_;
};

/// Zeros that ask nothing.
class Zeros final : public Dataset {
 public:
  int64_t vocabulary() const override { return 7; }
  int64_t block_size() const override { return 6; }
  int64_t epoch_samples(Split) const override { return 10; }
  void sample(Split, int64_t, int32_t* ids, int32_t* targets) const override {
    std::fill_n(ids, 6, 0);
    std::fill_n(targets, 6, 0);
  }
};

Score score_of(GPTCase& model, const Dataset& data, Split split, int64_t samples) {
  return score(
      model.gpt, [&] { return model.tape(TapeMode::inference); }, data, split, samples);
}

}  // namespace

TEST_CASE("score counts the samples whose whole answer equals the model's greedy prediction") {
  GPTCase model(tiny_config(), Device::cpu(0, {.threads = 1}), DType::f32, 15.0);
  const OwnAnswers data(model);
  const Score train = score_of(model, data, Split::train, 5000);
  CHECK(train.total == 1100);  // an epoch, in three batches
  CHECK(train.correct == 733);
  const Score validation = score_of(model, data, Split::validation, 7);
  CHECK(validation.total == 7);
  CHECK(validation.correct == 4);
  const auto make_tape = [&] { return model.tape(TapeMode::inference); };
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  CHECK(score(model.gpt, make_tape, data, Split::validation, 7, most).correct == 4);
  const auto loss = [&](int64_t batch, int64_t batches) {
    return mean_loss(model.gpt, make_tape, data, Split::validation, model.device, batch, batches);
  };
  CHECK(loss(2, most) == loss(2, 0));
}

TEST_CASE("score returns its first three mistakes") {
  GPTCase model(tiny_config(), Device::cpu(0, {.threads = 1}), DType::f32, 15.0);
  const OwnAnswers data(model);
  const std::vector<Score::Mistake> mistakes = score_of(model, data, Split::train, 40).mistakes;
  REQUIRE(mistakes.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    std::vector<int32_t> ids(6), targets(6);
    data.sample(Split::train, static_cast<int64_t>(3 * i), ids.data(), targets.data());
    CHECK(mistakes[i].question == std::vector<int32_t>(ids.begin(), ids.begin() + 2));
    CHECK(mistakes[i].expected == std::vector<int32_t>(targets.begin() + 1, targets.end()));
    CHECK(std::equal(ids.begin() + 2, ids.end(), mistakes[i].answer.begin()));
    CHECK(mistakes[i].answer.back() == (targets[5] + 6) % 7);
  }
}

TEST_CASE("score refuses a dataset without questions") {
  GPTCase model(tiny_config());
  CHECK_THROWS_WITH_AS(score_of(model, Zeros(), Split::train, 5),
                       "score: this dataset has no questions; expected the sort or adder data",
                       ConfigError);
  const OwnAnswers data(model);
  CHECK_THROWS_WITH_AS(
      score(
          model.gpt, [&] { return model.tape(TapeMode::inference); }, data, Split::train, 5, 0),
      "score: at_once: expected 1 sample or more, got 0", ConfigError);
}

TEST_CASE("ranks share the questions of a score and get the score of one rank") {
  GPTCase alone(tiny_config(), Device::cpu(0, {.threads = 1}), DType::f32, 15.0);
  const Score expected = score_of(alone, OwnAnswers(alone), Split::train, 40);
  run_local(3, [&](Communicator& ranks, const Device& device) {
    GPTCase model(tiny_config(), device, DType::f32, 15.0);
    const OwnAnswers data(model);
    int passes = 0;
    const auto make_tape = [&] {
      ++passes;
      return model.tape(TapeMode::inference);
    };
    const Score shared = score(model.gpt, make_tape, data, Split::train, 40, /*at_once=*/6, &ranks);
    CHECK(passes == 3 * 5);  // of 7 batches, each of 5 tokens
    CHECK(shared.total == 40);
    CHECK(shared.correct == expected.correct);
    REQUIRE(shared.mistakes.size() == 3);
    for (size_t i = 0; i < 3; ++i) {
      CHECK(shared.mistakes[i].question == expected.mistakes[i].question);
      CHECK(shared.mistakes[i].answer == expected.mistakes[i].answer);
      CHECK(shared.mistakes[i].expected == expected.mistakes[i].expected);
    }
  });
}

TEST_CASE("logits of one rank that are not finite end the score of all ranks, after equal passes") {
  GPTCase alone(tiny_config(), Device::cpu(0, {.threads = 1}), DType::f32, 15.0);
  const OwnAnswers answers(alone);
  std::vector<int32_t> ids(6), targets(6);
  for (const int64_t i : {0, 1}) answers.sample(Split::train, i, ids.data(), targets.data());
  run_local(2, [&](Communicator& ranks, const Device& device) {
    GPTCase model(tiny_config(), device, DType::f32, 15.0);
    if (ranks.rank() == 1)
      for (const auto& parameter : model.store.parameters())
        std::ranges::fill(model.source.at_rest(*parameter), NAN);
    int passes = 0;
    const auto make_tape = [&] {
      ++passes;
      return model.tape(TapeMode::inference);
    };
    CHECK_ERROR(ConfigError, "expected logits with a finite maximum",
                score(model.gpt, make_tape, answers, Split::train, 2, /*at_once=*/1, &ranks));
    CHECK(passes == 5);
  });
}
