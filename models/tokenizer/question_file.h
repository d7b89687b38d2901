#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/models/gpt/multiple_choice.h"
#include "zerograd/models/tokenizer/tokenizer.h"

namespace zg::models {

struct QuestionFileOptions {
  /// True: "ctx" and endings are used unchanged, as in llm.c, also if a line has "ctx_a".
  bool plain = false;
  /// Replaces a context without tokens, if the tokenizer puts none before a text.
  /// lm-evaluation-harness uses the token that begins a text, or if there is none, the one that
  /// ends a text.
  std::optional<int32_t> first = {};
};

/// Reads multiple choice questions from lines of JSON, in HellaSwag's format (Zellers et al. 2019,
/// arXiv:1905.07830): {"ctx": "She opens the", "endings": ["door.", "moon."], "label": 0}. The
/// label may be a string, "0". Other members are ignored, empty lines left out.
///
/// A line with "ctx_a", as in HellaSwag's files, is read as in lm-evaluation-harness 0.4. The
/// context is "activity_label: ctx_a ctx_b" with ctx_b capitalized, by simple mappings of case. In
/// context and endings, white space at both ends and texts in brackets are removed, " [title]"
/// becomes ". ", and two spaces become one. In other lines, and in all if `plain`, "ctx" and
/// endings are unchanged.
///
/// The ending follows the context and a space. As in that harness, both are encoded as one text,
/// the first n tokens of which belong to the context, where n is the number of tokens of the
/// context without the ending. White space at the context's end belongs to the ending. If `plain`,
/// context and ending are encoded separately, as in llm.c. The tokens that the tokenizer puts
/// before a text are before the context.
///
/// Throws FileError with file and line for invalid UTF-8 and JSON, missing members and other types,
/// fewer than two endings, endings without characters or tokens, a missing label or one out of
/// range, an empty context without a token for it, and a file without questions.
ZG_API std::vector<ChoiceQuestion> read_questions(const std::string& path,
                                                  const Tokenizer& tokenizer,
                                                  const QuestionFileOptions& options = {});

}  // namespace zg::models
