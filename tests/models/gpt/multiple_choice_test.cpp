#include "zerograd/models/gpt/multiple_choice.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/models/gpt/gpt_case.h"
#include "tests/support/error_message.h"
#include "zerograd/models/tokenizer/question_file.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/storage/file_io.h"

// Scores as lm-evaluation-harness computes them: tests/reference/make_multiple_choice_fixtures.py
// makes the fixtures.
using namespace zg;
using namespace zg::testing;
using namespace zg::models;
using nlohmann::json;

namespace {

const std::string choice_model = std::string(ZG_FIXTURES) + "hf_chat";
const std::string choice_fixture = std::string(ZG_FIXTURES) + "multiple_choice/";

json expected_choices(const std::string& name) {
  return json::parse(read_text(choice_fixture + "expected.json")).at(name);
}

/// The questions of a case of the fixture.
std::vector<ChoiceQuestion> questions_of(const std::string& name) {
  const Tokenizer own = load_tokenizer(choice_model);
  TokenizerParts parts = own.parts();
  if (name == "begins") parts.around.before = {*own.id_of_added("<|im_start|>")};
  return read_questions(choice_fixture + "questions.jsonl", Tokenizer(parts, "tokenizer"),
                        {.plain = name == "plain"});
}

ChoiceScores scores_of(GPTCase& model, const std::vector<ChoiceQuestion>& questions,
                       const ChoiceOptions& options = {}) {
  return score_choices(
      model.gpt, [&] { return model.tape(TapeMode::inference); }, questions, options);
}

std::vector<std::vector<double>> sums_of(const ChoiceScores& scores) {
  std::vector<std::vector<double>> sums;
  for (const ChosenEndings& chosen : scores.questions) sums.push_back(chosen.sums);
  return sums;
}

/// Two endings of one token behind one token.
std::vector<ChoiceQuestion> short_questions(int64_t answer = 0) {
  return {{.choices = {{.tokens = {1, 2}, .scored = 1, .characters = 1},
                       {.tokens = {1, 3}, .scored = 1, .characters = 1}},
           .answer = answer}};
}

}  // namespace

TEST_CASE("the tokens of questions and endings are those of lm-evaluation-harness") {
  for (const char* name : {"harness", "begins", "plain"}) {
    CAPTURE(std::string(name));
    const std::vector<ChoiceQuestion> questions = questions_of(name);
    const json expected = expected_choices(name);
    REQUIRE(questions.size() == expected["tokens"].size());
    for (size_t q = 0; q < questions.size(); ++q) {
      CAPTURE(q);
      REQUIRE(questions[q].choices.size() == expected["tokens"][q].size());
      for (size_t i = 0; i < questions[q].choices.size(); ++i) {
        CAPTURE(i);
        const Choice& choice = questions[q].choices[i];
        const auto first = choice.tokens.end() - choice.scored;
        CHECK(std::vector<int32_t>(first, choice.tokens.end()) ==
              expected["tokens"][q][i].get<std::vector<int32_t>>());
        if (expected.contains("contexts"))
          CHECK(std::vector<int32_t>(choice.tokens.begin(), first) ==
                expected["contexts"][q][i].get<std::vector<int32_t>>());
      }
    }
  }
}

TEST_CASE("log-probabilities, chosen endings and accuracies are those of lm-evaluation-harness") {
  const HuggingFaceFolder folder(choice_model);
  for (const Device& device : devices_at_every_level())
    for (const char* name : {"harness", "begins", "short", "plain"}) {
      INFO(level_of(device), ", ", std::string(name));
      GPTCase model(folder.model().config, device);
      load_weights(folder.weights(model.gpt.config()), model);
      const json expected = expected_choices(name);
      const bool is_short = name == std::string("short");
      const ChoiceScores scores =
          scores_of(model, questions_of(name), {.at_once = 5, .block_size = is_short ? 40 : 0});
      for (size_t q = 0; q < scores.questions.size(); ++q) {
        CAPTURE(q);
        const ChosenEndings& chosen = scores.questions[q];
        for (size_t i = 0; i < chosen.sums.size(); ++i)
          CHECK(chosen.sums[i] ==
                doctest::Approx(expected["sums"][q][i].get<double>()).epsilon(1e-5));
        CHECK(chosen.by_sum == expected["acc_chosen"][q]);
        CHECK(chosen.by_character == expected["acc_norm_chosen"][q]);
        CHECK(chosen.by_token == expected["acc_token_chosen"][q]);
      }
      CHECK(scores.acc.total == 12);
      CHECK(scores.acc.correct == expected["acc_correct"]);
      CHECK(scores.acc_norm.correct == expected["acc_norm_correct"]);
      CHECK(scores.acc_token.correct == expected["acc_token_correct"]);
      if (!expected.contains("cut")) continue;
      CHECK(scores.cut == expected["cut"]);
      CHECK(scores.acc.standard_error() ==
            doctest::Approx(expected["acc_stderr"].get<double>()).epsilon(1e-12));
      CHECK(scores.acc_norm.standard_error() ==
            doctest::Approx(expected["acc_norm_stderr"].get<double>()).epsilon(1e-12));
    }
}

TEST_CASE("how many endings share a pass changes the rounding of their log-probabilities alone") {
  const HuggingFaceFolder folder(choice_model);
  const std::vector<ChoiceQuestion> questions = questions_of("harness");
  for (const Device& device : devices_at_every_level())
    for (const auto& [dtype, rounding] : {std::pair{DType::f32, 1e-6}, {DType::bf16, 1e-2}}) {
      INFO(level_of(device), ", ", name_of(dtype));
      GPTCase model(folder.model().config, device, dtype);
      load_weights(folder.weights(model.gpt.config()), model);
      const ChoiceScores alone = scores_of(model, questions, {.at_once = 1});
      CHECK(sums_of(scores_of(model, questions, {.at_once = 1})) == sums_of(alone));
      for (const int64_t at_once : {2, 7, 64}) {
        CAPTURE(at_once);
        const ChoiceScores scores = scores_of(model, questions, {.at_once = at_once});
        for (size_t q = 0; q < questions.size(); ++q)
          for (size_t i = 0; i < alone.questions[q].sums.size(); ++i)
            CHECK(scores.questions[q].sums[i] ==
                  doctest::Approx(alone.questions[q].sums[i]).epsilon(rounding));
        CHECK(scores.cut == alone.cut);
      }
    }
}

TEST_CASE("losses of chosen tokens are the mean loss of their targets") {
  for (const GPTConfig& config : tiny_decoders()) {
    CAPTURE(text_of(config));
    GPTCase model(config, Device::cpu(), DType::f32, 15.0);
    const Tensor ids = random_ids(2, 6, 7, model.device, 3);
    std::vector<int32_t> targets(12, -1);
    const std::vector<int32_t> places{1, 5, 6}, wanted{4, 0, 6};
    for (size_t i = 0; i < 3; ++i) targets[static_cast<size_t>(places[i])] = wanted[i];
    const Tensor all = Tensor::from(targets, {2, 6}, model.device);
    Tape tape = model.tape(TapeMode::inference);
    const double mean = model.gpt.loss(tape, ids, all, {}).value().item();
    const Tensor where = Tensor::from(places, {1, 3}, model.device);
    const Tensor next = Tensor::from(wanted, {1, 3}, model.device);
    const std::vector<double> losses = model.gpt.losses_at(tape, ids, where, next).to_doubles();
    CHECK((losses[0] + losses[1] + losses[2]) / 3 == doctest::Approx(mean).epsilon(1e-6));
    Tape recording = model.tape();
    CHECK(message_of<TapeError>([&] { model.gpt.losses_at(recording, ids, where, next); }) ==
          "losses_at: expected a tape in inference mode; the losses have no gradients");
    CHECK(message_of<ShapeError>([&] { model.gpt.losses_at(tape, ids, where, ids); }) ==
          "losses_at: places [1, 3] and targets [2, 6] do not fit; expected [1, N] both");
  }
}

TEST_CASE("equal endings choose the first one, and one question has no standard error") {
  GPTCase model(tiny_config());
  std::vector<ChoiceQuestion> questions = short_questions(/*answer=*/1);
  questions[0].choices[1] = questions[0].choices[0];
  const ChoiceScores scores = scores_of(model, questions);
  CHECK(scores.questions[0].by_sum == 0);
  CHECK(scores.questions[0].by_character == 0);
  CHECK(scores.questions[0].by_token == 0);
  CHECK(scores.acc.fraction() == 0.0);
  CHECK(std::isnan(scores.acc.standard_error()));
  CHECK(ChoiceAccuracy{2, 5}.standard_error() == doctest::Approx(std::sqrt(0.4 * 0.6 / 4)));
}

TEST_CASE("score_choices names the question whose choices it cannot score") {
  GPTCase model(tiny_config());
  const auto message = [&](const std::vector<ChoiceQuestion>& questions) {
    return message_of<ConfigError>([&] { scores_of(model, questions); });
  };
  std::vector<ChoiceQuestion> questions = short_questions();
  questions[0].choices[1].tokens[0] = 7;
  CHECK(message(questions) ==
        "question 0: endings[1]: token 7; expected 0 to 6, which the model knows");
  questions = short_questions(/*answer=*/2);
  questions[0].place = "q.jsonl:3";
  CHECK(message(questions) == "q.jsonl:3: the right ending is 2; expected an index into 2 endings");
  questions = short_questions();
  questions[0].choices[0] = {.tokens = {1, 2, 3, 4, 5, 6, 0, 1}, .scored = 7, .characters = 9};
  CHECK(message(questions) ==
        "question 0: endings[0] has 7 tokens; expected at most the block size 6; try a larger one, "
        "if the model has the positions");
  questions[0].choices[0].scored = 8;
  CHECK(message(questions) ==
        "question 0: endings[0] has 9 characters and 8 of 8 tokens; expected one or more of each, "
        "behind a context of one token or more");
  CHECK(message_of<ConfigError>(
            [&] { scores_of(model, short_questions(), {.at_once = 0, .block_size = 7}); }) ==
        "score_choices: expected 1 choice or more at once and a block size up to 6, got 0 "
        "and 7");
  for (const auto& parameter : model.store.parameters())
    for (double& value : model.source.at_rest(*parameter))
      value = std::numeric_limits<double>::quiet_NaN();
  CHECK(message(short_questions()) ==
        "question 0: endings[0]: its log-probability is NaN; expected a number; the model's "
        "weights are not usable");
}
