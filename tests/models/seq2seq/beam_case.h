#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "zerograd/models/seq2seq/beam_search.h"

// Cases that tests/reference/make_beam_fixtures.py writes: arguments and results of transformers'
// generate().
namespace zg::testing {

using TokenRows = std::vector<std::vector<int32_t>>;

inline std::vector<int32_t> ids_of(const nlohmann::json& value) {
  return value.is_array() ? value.get<std::vector<int32_t>>() : std::vector<int32_t>{value};
}

inline models::EarlyStopping early_stopping_of(const nlohmann::json& value) {
  if (value.is_string()) return models::EarlyStopping::never;
  return value.get<bool>() ? models::EarlyStopping::yes : models::EarlyStopping::no;
}

/// From the arguments of generate().
inline models::BeamOptions options_of_generate(const nlohmann::json& test_case) {
  models::BeamOptions options{.start = test_case["start"].get<std::vector<int32_t>>()};
  for (const auto& [name, value] : test_case["options"].items()) {
    if (name == "num_beams")
      options.beams = value;
    else if (name == "num_return_sequences")
      options.return_sequences = value;
    else if (name == "eos_token_id")
      options.eos = ids_of(value);
    else if (name == "pad_token_id")
      options.pad = value.get<int32_t>();
    else if (name == "max_length")
      options.max_length = value.get<int64_t>();
    else if (name == "max_new_tokens")
      options.max_new_tokens = value.get<int64_t>();
    else if (name == "min_length")
      options.min_length = value;
    else if (name == "min_new_tokens")
      options.min_new_tokens = value.get<int64_t>();
    else if (name == "length_penalty")
      options.length_penalty = value;
    else if (name == "early_stopping")
      options.early_stopping = early_stopping_of(value);
    else if (name == "no_repeat_ngram_size")
      options.no_repeat_ngram_size = value;
    else if (name == "suppress_tokens")
      options.suppressed = value.get<std::vector<int32_t>>();
    else if (name == "begin_suppress_tokens")
      options.begin_suppressed = value.get<std::vector<int32_t>>();
    else if (name == "repetition_penalty")
      options.repetition_penalty = value;
    else if (name == "encoder_no_repeat_ngram_size")
      options.encoder_no_repeat_ngram_size = value;
    else if (name == "forced_bos_token_id")
      options.forced_bos = value.get<int32_t>();
    else if (name == "forced_eos_token_id")
      options.forced_eos = ids_of(value);
    else
      FAIL("an option that this test does not know: ", name);
  }
  return options;
}

/// beam_search() gives the ids of the case, and its scores up to rounding.
inline void check_generated(const nlohmann::json& test_case, const models::NextLogits& next_logits,
                            float error_of_logits = 0.0f) {
  CAPTURE(test_case["name"].get<std::string>());
  const models::Generated got =
      models::beam_search(next_logits, test_case["vocabulary"],
                          test_case["sources"].get<TokenRows>(), options_of_generate(test_case));
  CHECK(got.rows == test_case["rows"].get<TokenRows>());
  if (!test_case.contains("scores")) {
    CHECK(got.scores.empty());
    return;
  }
  const auto scores = test_case["scores"].get<std::vector<float>>();
  REQUIRE(got.scores.size() == scores.size());
  // In each of up to 20 steps both programs round the sum of log-probabilities, and PyTorch rounds
  // the sum in log_softmax, which is at least 1, a few times.
  for (size_t i = 0; i < scores.size(); ++i)
    CHECK(std::fabs(got.scores[i] - scores[i]) <=
          20 * (0x1p-24f * (2 * std::fabs(scores[i]) + 4) + 2 * error_of_logits));
}

}  // namespace zg::testing
