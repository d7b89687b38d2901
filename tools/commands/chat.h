#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/run/inference.h"
#include "zerograd/models/data/conversation_data.h"
#include "zerograd/models/gpt/generate.h"
#include "zerograd/models/tokenizer/text_stream.h"
#include "zerograd/models/tokenizer/tokenizer.h"

namespace zg::tools {

struct ChatOptions {
  models::ChatFormat format;
  std::string prompt;    ///< the first turn of the user; empty: the first line of stdin
  int64_t length = 200;  ///< most tokens of an answer
  models::SamplingOptions sampling;
};

/// Each line of stdin is a turn of the user, and the answer to it is printed; in a plan the first
/// turn, or a short one, is answered. An answer ends with a
/// token of sampling.ends, or with the special token that the format writes behind answers. Throws
/// FileError for turns that a template refuses.
void talk(const TrainedModel& trained, const models::Tokenizer& tokenizer,
          const ChatOptions& options, InferenceMode mode);

/// Throws ConfigError that begins with `flag` for a token that a model does not know.
void check_prompt(const char* flag, std::span<const int32_t> prompt, int64_t vocabulary);
void print_text(const std::string& text);  ///< to stdout, flushed
/// Continues the prompt with a decoder by `length` tokens, or until one of sampling.ends. Writes
/// the text as it comes, and a new line, with `words`; null, or in a plan: writes nothing. Returns
/// the text.
std::string write_continuation(const TrainedModel& trained, const std::vector<int32_t>& prompt,
                               int64_t length, models::SamplingOptions sampling,
                               models::TextStream* words, InferenceMode mode);

}  // namespace zg::tools
