#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/models/gpt/multiple_choice.h"
#include "zerograd/models/tokenizer/tokenizer.h"

namespace zg::models {

struct QuestionFileOptions {
  /// True: the texts as they are, as llm.c takes them, also where a line has "ctx_a".
  bool plain = false;
  /// Stands for a context without tokens, if the tokenizer puts none before a text. lm-evaluation-
  /// harness takes the token that begins a text, or else the one that ends it.
  std::optional<int32_t> first = {};
};

/// Reads multiple choice questions from lines of JSON, in HellaSwag's format (Zellers et al. 2019,
/// arXiv:1905.07830): {"ctx": "She opens the", "endings": ["door.", "moon."], "label": 0}. The
/// label may be a string, "0". Other members are ignored, empty lines left out.
///
/// A line with "ctx_a", as HellaSwag's have, gets the texts of lm-evaluation-harness 0.4: the
/// context is "activity_label: ctx_a ctx_b" with ctx_b capitalized, by simple mappings of case; in
/// it and in endings white space at both ends and texts in brackets are removed, " [title]" becomes
/// ". " and two spaces one. Other lines, and all if `plain`, have "ctx" and endings as they are.
///
/// The ending follows the context and a space. As in that harness, tokens are those of the whole
/// text behind as many as the context alone has, and white space at the context's end belongs to
/// the ending; if `plain`, context and ending are encoded one by one, as in llm.c. The tokens that
/// the tokenizer puts before a text are before the context.
///
/// Throws FileError with file and line for invalid UTF-8 and JSON, missing members and other types,
/// fewer than two endings, endings without characters or tokens, a missing label or one out of
/// range, an empty context without a token for it, and a file without questions.
ZG_API std::vector<ChoiceQuestion> read_questions(const std::string& path,
                                                  const Tokenizer& tokenizer,
                                                  const QuestionFileOptions& options = {});

}  // namespace zg::models
