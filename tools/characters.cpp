#include "tools/characters.h"

#include <sstream>

#include "runtime/error.h"
#include "tools/values.h"

namespace zg::tools {
namespace {

// A code point is a byte and the continuation bytes (10xxxxxx) behind it.
std::vector<std::string> code_points(const std::string& utf8) {
  std::vector<std::string> points;
  for (char byte : utf8) {
    const bool continues = (static_cast<uint8_t>(byte) & 0xC0u) == 0x80u;
    if (continues && !points.empty())
      points.back() += byte;
    else
      points.emplace_back(1, byte);
  }
  return points;
}

std::vector<int32_t> numbers(const std::string& text) {
  std::vector<int32_t> ids;
  std::istringstream words(text);
  for (std::string word; words >> word;)
    ids.push_back(static_cast<int32_t>(parse_integer("--prompt", word, 0, 65535)));
  return ids;
}

}  // namespace

Characters::Characters(const std::string& in_order_of_ids)
    : characters_(code_points(in_order_of_ids)) {
  for (size_t id = 0; id < characters_.size(); ++id)
    ids_.emplace(characters_[id], static_cast<int32_t>(id));
}

std::vector<int32_t> Characters::encode(const std::string& text) const {
  if (empty()) return numbers(text);
  std::vector<int32_t> ids;
  for (const std::string& character : code_points(text)) {
    const auto found = ids_.find(character);
    if (found == ids_.end())
      throw ConfigError("--prompt: the model does not know '" + character + "'; expected only '" +
                        join(characters_, "") + "'");
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
