#pragma once

#include <string>

#include "tools/run/inference.h"
#include "zerograd/models/data/conversation_data.h"
#include "zerograd/models/gpt/generate.h"
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

}  // namespace zg::tools
