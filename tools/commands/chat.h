#pragma once

#include <cstdint>
#include <functional>
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
  std::string prompt;         ///< the first turn of the user; empty: the first line of stdin
  int64_t length = 200;       ///< most tokens of an answer
  std::vector<int32_t> ends;  ///< each of them ends an answer
  /// The options of the answer to a prompt, and maybe another `length` of it.
  std::function<models::SamplingOptions(const std::vector<int32_t>& prompt, int64_t& length)>
      sampling;
};

/// Reads turns of the user, one from each line of stdin, and prints an answer to each. A plan
/// answers one turn: `prompt`, or "Hi" if that is empty. An answer ends with a token of
/// `ends`, or with the special token that the format writes behind answers. Throws FileError
/// if the template refuses the turns.
void talk(const TrainedModel& trained, const models::Tokenizer& tokenizer,
          const ChatOptions& options, InferenceMode mode);

/// Throws ConfigError if a token is not in [0, vocabulary). The message begins with `flag`.
void check_prompt(const char* flag, std::span<const int32_t> prompt, int64_t vocabulary);
void print_text(const std::string& text);  ///< to stdout, flushed
/// Continues the prompt with a decoder by `length` tokens, or until a token of sampling.ends.
/// `words` decodes the tokens. Prints the text token by token, then a new line, and returns the
/// text. If `words` is null, or in a plan, prints nothing and returns "".
std::string write_continuation(const TrainedModel& trained, const std::vector<int32_t>& prompt,
                               int64_t length, models::SamplingOptions sampling,
                               models::TextStream* words, InferenceMode mode);

}  // namespace zg::tools
