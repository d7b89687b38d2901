#include "tools/characters.h"

#include <algorithm>
#include <sstream>

#include "tools/text.h"
#include "tools/values.h"
#include "zerograd/runtime/utf8.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {
namespace {

std::vector<std::string> code_points(const std::string& utf8) {
  std::vector<std::string> points;
  for (size_t position = 0; position < utf8.size();) {
    const size_t begin = position;
    next_code_point(utf8, position, "--prompt");
    points.push_back(utf8.substr(begin, position - begin));
  }
  return points;
}

// On one line, whatever it is.
std::string shown(const std::string& character) {
  if (character == "\n") return "\\n";
  if (character == "\r") return "\\r";
  if (character == "\t") return "\\t";
  const auto code = static_cast<unsigned char>(character.front());
  return code < 0x20 || code == 0x7f ? text("\\x%02x", code) : character;
}

std::string shown(const std::vector<std::string>& characters) {
  constexpr size_t most = 100;
  std::string line;
  for (size_t i = 0; i < std::min(most, characters.size()); ++i) line += shown(characters[i]);
  return line + (characters.size() > most ? " ..." : "");
}

int32_t token_of(const std::string& word) {
  const bool is_number =
      std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!is_number)
    throw ConfigError(
        "--prompt: the model has neither characters nor a tokenizer; expected tokens as "
        "in \"1 2 3\", got '" +
        printable(word) +
        "'; try --tokenizer PATH, or --data with "
        "the text that it was trained on");
  return static_cast<int32_t>(parse_integer("--prompt", word, 0, INT32_MAX));
}

std::vector<int32_t> numbers(const std::string& text) {
  std::vector<int32_t> ids;
  std::istringstream words(text);
  for (std::string word; words >> word;) ids.push_back(token_of(word));
  return ids;
}

}  // namespace

Characters::Characters(const std::string& in_order_of_ids)
    : characters_(code_points(in_order_of_ids)) {
  for (size_t id = 0; id < characters_.size(); ++id)
    ids_.emplace(characters_[id], static_cast<int32_t>(id));
}

std::vector<int32_t> Characters::encode(const std::string& prompt) const {
  if (empty()) return numbers(prompt);
  std::vector<int32_t> ids;
  for (const std::string& character : code_points(prompt)) {
    const auto found = ids_.find(character);
    if (found == ids_.end())
      throw ConfigError("--prompt: the model does not know '" + shown(character) +
                        "'; expected only its " + std::to_string(characters_.size()) +
                        " characters: " + shown(characters_));
    ids.push_back(found->second);
  }
  return ids;
}

std::string Characters::decode(int32_t token) const {
  if (empty()) return std::to_string(token) + " ";
  // A model may have more tokens than the data had characters.
  const size_t id = static_cast<size_t>(token);
  return id < characters_.size() ? characters_[id] : "\uFFFD";
}

}  // namespace zg::tools
