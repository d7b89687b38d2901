#include "zerograd/models/tokenizer/vocabulary.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {

using nlohmann::json;
namespace {

constexpr char32_t first_substitute = 0x100;

bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

std::array<char32_t, 256> code_points() {
  std::array<char32_t, 256> codes;
  char32_t substitute = first_substitute;
  for (int byte = 0; byte < 256; ++byte)
    codes[static_cast<size_t>(byte)] =
        stands_for_itself(byte) ? static_cast<char32_t>(byte) : substitute++;
  return codes;
}

// Byte for each code point below U+0144; -1: none.
std::array<int, 0x144> byte_of_code_point() {
  std::array<int, 0x144> bytes;
  bytes.fill(-1);
  const auto codes = code_points();
  for (size_t byte = 0; byte < codes.size(); ++byte) bytes[codes[byte]] = static_cast<int>(byte);
  return bytes;
}

}  // namespace

const std::array<std::string, 256>& byte_alphabet() {
  static const auto alphabet = [] {
    std::array<std::string, 256> characters;
    const auto codes = code_points();
    std::transform(codes.begin(), codes.end(), characters.begin(), utf8);
    return characters;
  }();
  return alphabet;
}

std::array<unsigned char, 256> bytes_by_character() {
  std::array<unsigned char, 256> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i);
  const auto codes = code_points();
  std::ranges::sort(bytes, [&](auto a, auto b) { return codes[a] < codes[b]; });
  return bytes;
}

std::optional<std::string> from_alphabet(std::string_view characters) {
  static const auto bytes_of = byte_of_code_point();
  std::string bytes;
  for (size_t i = 0; i < characters.size(); ++i) {
    auto code = static_cast<unsigned char>(characters[i]);
    size_t where = code;
    if (code >= 0x80) {  // two bytes of UTF-8, the longest code in the alphabet
      if (code < 0xc2 || code > 0xdf || ++i == characters.size()) return std::nullopt;
      const auto next = static_cast<unsigned char>(characters[i]);
      if ((next & 0xc0) != 0x80) return std::nullopt;
      where = static_cast<size_t>(code & 0x1f) << 6 | (next & 0x3f);
    }
    if (where >= bytes_of.size() || bytes_of[where] < 0) return std::nullopt;
    bytes += static_cast<char>(bytes_of[where]);
  }
  return bytes;
}

VocabularyMap::VocabularyMap(const json& object, std::string where) : where_(std::move(where)) {
  add(object, where_);
}

void VocabularyMap::add(const json& object, const std::string& where) {
  if (!object.is_object())
    raise<FileError>("{}: expected an object of tokens and their ids, got {}", where,
                     brief(object));
  for (const auto& [token, id] : object.items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<int32_t>::max())
      raise<FileError>("{}.{}: expected an id, got {}", where, brief(token), brief(id));
    add(token, id.get<int32_t>());
  }
}

bool VocabularyMap::add(const std::string& token, int32_t id) {
  const auto [found, is_new] = ids_.emplace(token, id);
  if (found->second != id)
    raise<FileError>("{}: token {} is {} there and {} among the added tokens", where_, brief(token),
                     found->second, id);
  return is_new;
}

std::optional<int32_t> VocabularyMap::find(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

Merge VocabularyMap::merge(std::string_view left, std::string_view right,
                           const std::string& where) const {
  const auto id = [&](const std::string& token) {
    const auto found = find(token);
    if (!found) raise<FileError>("{}: {} is not in the vocabulary", where, brief(token));
    return *found;
  };
  std::string joined(left);
  return {id(std::string(left)), id(std::string(right)), id(joined.append(right))};
}

std::vector<std::string> VocabularyMap::tokens() const {
  std::vector<const std::string*> by_id(ids_.size());
  for (const auto& [token, id] : ids_) {
    const auto where = static_cast<size_t>(id);
    if (where >= by_id.size() || by_id[where])
      raise<FileError>("{}: expected the ids 0 to {}, each once; {} has {}", where_,
                       ids_.size() - 1, brief(token), id);
    by_id[where] = &token;
  }
  std::vector<std::string> tokens;
  tokens.reserve(by_id.size());
  for (const std::string* token : by_id) tokens.push_back(*token);
  return tokens;
}

}  // namespace zg::models
