#include "zerograd/models/tokenizer/vocabulary_map.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "zerograd/models/json_text.h"
#include "zerograd/runtime/error.h"

namespace zg::models {

using nlohmann::json;

VocabularyMap::VocabularyMap(const json& object, std::string place) : place_(std::move(place)) {
  add(object, place_);
}

void VocabularyMap::add(const json& object, const std::string& place) {
  if (!object.is_object())
    throw FileError(place + ": expected an object of tokens and their ids, got " + brief(object));
  for (const auto& [token, id] : object.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<int32_t>::max())
      throw FileError(place + "." + brief(token) + ": expected an id, got " + brief(id));
    add(token, id.get<int32_t>());
  }
}

void VocabularyMap::add(const std::string& token, int32_t id) {
  const auto [found, is_new] = ids_.emplace(token, id);
  if (found->second != id)
    throw FileError(place_ + ": token " + brief(token) + " is " + std::to_string(found->second) +
                    " there and " + std::to_string(id) + " among the added tokens");
}

Merge VocabularyMap::merge(std::string_view left, std::string_view right,
                           const std::string& where) const {
  const auto id = [&](const std::string& token) {
    const auto found = ids_.find(token);
    if (found == ids_.end())
      throw FileError(where + ": " + brief(token) + " is not in the vocabulary");
    return found->second;
  };
  std::string joined(left);
  return {id(std::string(left)), id(std::string(right)), id(joined.append(right))};
}

std::vector<std::string> VocabularyMap::tokens() const {
  std::vector<const std::string*> by_id(ids_.size());
  for (const auto& [token, id] : ids_) {
    const auto place = static_cast<size_t>(id);
    if (place >= by_id.size() || by_id[place])
      throw FileError(place_ + ": expected the ids 0 to " + std::to_string(ids_.size() - 1) +
                      ", each once; " + brief(token) + " has " + std::to_string(id));
    by_id[place] = &token;
  }
  std::vector<std::string> tokens;
  tokens.reserve(by_id.size());
  for (const std::string* token : by_id) tokens.push_back(*token);
  return tokens;
}

}  // namespace zg::models
