#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "zerograd/models/text/tokenizer.h"

namespace zg::models {

/// The tokens of a file by their content while it is read: {"token": id, ...} and what joins them.
class VocabularyMap {
 public:
  /// Of a JSON object; `place` begins errors: "tokenizer.json: model.vocab".
  VocabularyMap(const nlohmann::json& object, std::string place);

  void add(const std::string& token, int32_t id);  ///< FileError when it has another id
  /// Those of another object, `place` beginning errors about what is none.
  void add(const nlohmann::json& object, const std::string& place);
  /// "ab" of "a" and "b"; FileError beginning with `where` unless all three are tokens.
  Merge merge(std::string_view left, std::string_view right, const std::string& where) const;
  /// By id; FileError unless the ids are 0 to one less than their number.
  std::vector<std::string> tokens() const;

 private:
  std::string place_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace zg::models
