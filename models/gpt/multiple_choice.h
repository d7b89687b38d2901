#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "zerograd/models/gpt/gpt.h"

// Multiple choice: a model answers a question with the ending that it finds the likeliest.
namespace zg::models {

/// A question's context with one of its endings, as tokens.
struct Choice {
  std::vector<int32_t> tokens;  ///< the context's, at least one, then the ending's
  int64_t scored = 0;           ///< how many of the last tokens are the ending's; 1 or more
  int64_t characters = 0;       ///< code points of the ending's text; 1 or more
};
/// models/tokenizer/question_file.h reads questions from a file.
struct ChoiceQuestion {
  std::vector<Choice> choices;
  int64_t answer = 0;      ///< index of the right choice
  std::string place = {};  ///< begins a message about the question: "hellaswag.jsonl:3"
};

struct ChoiceOptions {
  int64_t at_once = 64;    ///< choices in one forward pass
  int64_t block_size = 0;  ///< tokens of a sequence; 0: the model's block size
};

/// How often the chosen ending was the right one.
struct ChoiceAccuracy {
  int64_t correct = 0, total = 0;
  double fraction() const { return static_cast<double>(correct) / static_cast<double>(total); }
  /// Standard error of the mean, sqrt(p (1 - p) / (n - 1)); NaN for a single question.
  ZG_API double standard_error() const;
};

/// A question's choices as a model sees them. Of equal numbers the first choice counts.
struct ChosenEndings {
  std::vector<double> sums;  ///< of each choice: log-probability of its ending, given the context
  int64_t by_sum = 0;        ///< index of the choice with the largest sum
  int64_t by_character = 0;  ///< that with the largest sum / characters
  int64_t by_token = 0;      ///< that with the largest sum / scored tokens
};

struct ChoiceScores {
  std::vector<ChosenEndings> questions;
  ChoiceAccuracy acc;        ///< by sum: acc of EleutherAI's lm-evaluation-harness
  ChoiceAccuracy acc_norm;   ///< by character: its acc_norm
  ChoiceAccuracy acc_token;  ///< by token: acc_norm of llm.c's hellaswag.py
  int64_t cut = 0;           ///< choices whose context lost tokens
};

/// Scores the choices of each question. A sequence is all tokens but the last one. If it is longer
/// than the block size, the context loses its first tokens, as in lm-evaluation-harness. Sequences
/// of about one length share a pass, the longest first, with padding behind them, which no token
/// sees; another `at_once` changes the rounding alone. Only the tokens of endings have logits.
/// `make_tape` gives inference tapes. Throws ConfigError, with the question's place, for an ending
/// longer than the block size, tokens that the model does not have, counts or an answer out of
/// range, and log-probabilities that are NaN.
ZG_API ChoiceScores score_choices(const GPT& model, const std::function<Tape()>& make_tape,
                                  const std::vector<ChoiceQuestion>& questions,
                                  const ChoiceOptions& options = {});

}  // namespace zg::models
