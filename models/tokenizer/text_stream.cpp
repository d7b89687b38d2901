#include "zerograd/models/tokenizer/text_stream.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {
namespace {

std::vector<std::string> code_points(const std::string& utf8, const std::string& where) {
  std::vector<std::string> points;
  for (size_t position = 0; position < utf8.size();) {
    const size_t begin = position;
    next_code_point(utf8, position, where);
    points.push_back(utf8.substr(begin, position - begin));
  }
  return points;
}

/// Escapes control characters, so that the result stays on one line.
std::string shown(const std::string& character) {
  if (character == "\n") return "\\n";
  if (character == "\r") return "\\r";
  if (character == "\t") return "\\t";
  const auto code = static_cast<unsigned char>(character.front());
  return code < 0x20 || code == 0x7f ? fmt::format("\\x{:02x}", code) : character;
}

std::string shown(const std::vector<std::string>& characters) {
  constexpr size_t max_shown = 100;
  std::string line;
  for (size_t i = 0; i < std::min(max_shown, characters.size()); ++i) line += shown(characters[i]);
  return line + (characters.size() > max_shown ? " ..." : "");
}

class Characters final : public TextStream {
 public:
  Characters(const std::string& characters, const std::string& where)
      : where_(where), characters_(code_points(characters, where)) {
    for (size_t id = 0; id < characters_.size(); ++id)
      ids_.emplace(characters_[id], static_cast<int32_t>(id));
  }

  std::vector<int32_t> encode(const std::string& prompt) const override {
    std::vector<int32_t> ids;
    for (const std::string& character : code_points(prompt, where_)) {
      const auto found = ids_.find(character);
      if (found == ids_.end())
        raise<ConfigError>("{}: the model does not know '{}'; expected only its {} characters: {}",
                           where_, shown(character), characters_.size(), shown(characters_));
      ids.push_back(found->second);
    }
    return ids;
  }

  std::string decode(int32_t token) override {
    // The model's vocabulary may be larger than the number of characters.
    const auto id = static_cast<size_t>(token);
    return id < characters_.size() ? characters_[id] : "\uFFFD";
  }

 private:
  std::string where_;
  std::vector<std::string> characters_;
  std::map<std::string, int32_t> ids_;
};

class Numbers final : public TextStream {
 public:
  explicit Numbers(std::string where) : where_(std::move(where)) {}

  std::vector<int32_t> encode(const std::string& prompt) const override {
    std::vector<int32_t> ids;
    std::istringstream words(prompt);
    for (std::string word; words >> word;) {
      if (!std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; }))
        raise<ConfigError>(
            "{}: the model has neither characters nor a tokenizer; expected tokens as "
            "in \"1 2 3\", got '{}'",
            where_, printable(word));
      int32_t id = 0;
      if (std::from_chars(word.data(), word.data() + word.size(), id).ec != std::errc())
        raise<ConfigError>("{}: expected a whole number from 0 to 2147483647, got '{}'", where_,
                           printable(word));
      ids.push_back(id);
    }
    return ids;
  }

  std::string decode(int32_t token) override { return std::to_string(token) + " "; }

 private:
  std::string where_;
};

class Tokenized final : public TextStream {
 public:
  explicit Tokenized(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::vector<int32_t> encode(const std::string& prompt) const override {
    return tokenizer_.encode_document(prompt);
  }

  std::string decode(int32_t token) override {
    const std::vector<int32_t>& before = tokenizer_.parts().around.before;
    if (is_first_ && hidden_ < before.size() && before[hidden_] == token) return ++hidden_, "";
    // The vocabulary of the model may be larger than that of its tokenizer.
    pending_ +=
        token < tokenizer_.vocabulary() ? tokenizer_.decode_one(token, is_first_) : utf8(0xfffd);
    is_first_ = false;
    const size_t complete = pending_.size() - unfinished_utf8(pending_);
    const std::string text = readable_utf8(std::string_view(pending_).substr(0, complete));
    pending_.erase(0, complete);
    return text;
  }

  std::string rest() override {
    const std::string text = readable_utf8(pending_);
    pending_.clear();
    return text;
  }

 private:
  Tokenizer tokenizer_;
  size_t hidden_ = 0;     // tokens before the text that have been decoded
  bool is_first_ = true;  // no token of the text has been decoded
  std::string pending_;   // the first bytes of a UTF-8 character that is not complete yet
};

}  // namespace

std::unique_ptr<TextStream> text_stream(Tokenizer tokenizer) {
  return std::make_unique<Tokenized>(std::move(tokenizer));
}

std::unique_ptr<TextStream> character_stream(const std::string& characters,
                                             const std::string& where) {
  if (characters.empty()) return std::make_unique<Numbers>(where);
  return std::make_unique<Characters>(characters, where);
}

}  // namespace zg::models
