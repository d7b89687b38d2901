#pragma once

#include <string>

#include "tests/fuzz/bounded.h"
#include "zerograd/models/data/conversation_data.h"
#include "zerograd/models/data/pair_data.h"
#include "zerograd/models/tokenizer/question_file.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"

// The readers of files with a JSON object on each line. A token is a byte.
namespace zg::testing {

inline const MemoryFile& lines() {
  static const MemoryFile file("lines");
  return file;
}

inline const models::Tokenizer& bytes() {
  static const models::Tokenizer tokenizer = models::train_tokenizer("", {.vocabulary = 257});
  return tokenizer;
}

inline void read_conversations(const std::string& text) {
  lines().set(text);
  models::ConversationFileOptions options{
      .encode = [](const std::string& t) { return bytes().encode_with_spans(t); }};
  options.chat = {.first = "", .roles = {{"user", {"u", "\n"}}, {"assistant", {"a", "\n"}}}};
  models::read_conversations(lines().path(), options);
}

inline void read_questions(const std::string& text) {
  lines().set(text);
  models::read_questions(lines().path(), bytes(), {});
}

inline void read_pairs(const std::string& text) {
  lines().set(text);
  models::read_pairs(lines().path(),
                     [](const std::string& t, int64_t) { return bytes().encode(t); }, {});
}

}  // namespace zg::testing
