#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "zerograd/models/tokenizer/tokenizer.h"

namespace zg::models {

/// Tokens of a file by content: {"token": id, ...} and the added tokens. Used while reading it.
class VocabularyMap {
 public:
  /// Reads a JSON object. Errors begin with `place`: "tokenizer.json: model.vocab".
  VocabularyMap(const nlohmann::json& object, std::string place);

  void add(const std::string& token, int32_t id);  ///< FileError when it has another id
  /// Adds the tokens of another object. Errors about it begin with `place`.
  void add(const nlohmann::json& object, const std::string& place);
  /// Merge of "a" and "b" into "ab". FileError beginning with `where` unless all three are tokens.
  Merge merge(std::string_view left, std::string_view right, const std::string& where) const;
  /// Tokens by id. FileError unless the ids are 0 to count - 1.
  std::vector<std::string> tokens() const;

 private:
  std::string place_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace zg::models
