#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "zerograd/models/tokenizer/tokenizer.h"
#include "zerograd/runtime/text/json.h"

namespace zg::models {

// GPT-2's encoding of bytes in tokenizer files: one printable character for each of the 256 bytes.
// Bytes that are printable in Latin-1 are written as themselves, the others as U+0100 and
// following, in order: a space is "Ġ".

/// The character of each byte, in UTF-8.
const std::array<std::string, 256>& byte_alphabet();
/// The bytes in the order of their characters' code points.
std::array<unsigned char, 256> bytes_by_character();

/// The bytes that the characters encode. Absent if a character does not encode a byte.
std::optional<std::string> from_alphabet(std::string_view characters);

/// Reads an added token without its id. `special` is used if the object has no such member.
AddedToken added_token_of(const JsonNode& object, bool special);
/// The parts in a tokenizer.json.
TokenizerParts tokenizer_parts(const std::string& json, const std::string& path);
/// Adds the tokens and the config of the files beside a folder's tokenizer.json.
void add_tokenizer_config(const std::string& folder, TokenizerParts& parts);

/// The ids of a file's tokens by content, used while reading the file: {"token": id, ...} and the
/// added tokens.
class VocabularyMap {
 public:
  /// Reads a JSON object. Errors begin with `where`: "tokenizer.json: model.vocab".
  VocabularyMap(const nlohmann::json& object, std::string where);

  /// Returns false for a token that exists. Throws FileError if it has another id.
  bool add(const std::string& token, int32_t id);
  std::optional<int32_t> find(const std::string& token) const;
  /// Adds the tokens of another object. Errors about it begin with `where`.
  void add(const nlohmann::json& object, const std::string& where);
  /// Merge of "a" and "b" into "ab". Throws FileError beginning with `where` unless all three are
  /// tokens.
  Merge merge(std::string_view left, std::string_view right, const std::string& where) const;
  /// Tokens by id. Throws FileError unless the ids are 0 to count - 1.
  std::vector<std::string> tokens() const;

 private:
  std::string where_;
  std::unordered_map<std::string, int32_t> ids_;
};

}  // namespace zg::models
