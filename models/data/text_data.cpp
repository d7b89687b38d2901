#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <system_error>

#include "zerograd/models/data/windows.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::vector<char> chunk(1 << 20);
  while (file.read(chunk.data(), static_cast<std::streamsize>(chunk.size())), file.gcount() > 0)
    text.append(chunk.data(), static_cast<size_t>(file.gcount()));
  if (!file.is_open() || file.bad())
    throw FileError(path + ": cannot be read: " + std::generic_category().message(errno));
  return text;
}

std::string hexadecimal(char32_t code) {
  char text[16];
  std::snprintf(text, sizeof text, "U+%04X", static_cast<unsigned>(code));
  return text;
}

/// A token for each code point, in ascending order.
class CharacterCodec final : public TextCodec {
 public:
  CharacterCodec(std::vector<char32_t> characters, std::string path)
      : characters_(std::move(characters)), path_(std::move(path)) {}

  std::vector<int32_t> encode(const std::string& text) const override {
    std::vector<int32_t> ids;
    for (size_t position = 0; position < text.size();) {
      const char32_t code = next_code_point(text, position, "encode");
      const auto found = std::lower_bound(characters_.begin(), characters_.end(), code);
      if (found == characters_.end() || *found != code)
        throw ConfigError("encode: '" + utf8(code) + "' (" + hexadecimal(code) +
                          ") is not among the " + std::to_string(characters_.size()) +
                          " characters of " + path_);
      ids.push_back(static_cast<int32_t>(found - characters_.begin()));
    }
    return ids;
  }

  std::string decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    for (int32_t id : ids) {
      if (id < 0 || static_cast<size_t>(id) >= characters_.size())
        throw ConfigError("decode: expected ids below " + std::to_string(characters_.size()) +
                          ", got " + std::to_string(id));
      text += utf8(characters_[static_cast<size_t>(id)]);
    }
    return text;
  }

 private:
  std::vector<char32_t> characters_;
  std::string path_;  // for errors
};

}  // namespace

std::unique_ptr<Dataset> text_dataset(const std::string& path, const TextOptions& options) {
  const std::string text = read_text(path);
  if (text.empty()) throw ConfigError(path + ": the file is empty; expected text");
  constexpr char32_t code_points = 0x110000;
  std::vector<int32_t> id_of(code_points, -1);
  for (size_t position = 0; position < text.size();)
    id_of[next_code_point(text, position, path)] = 0;

  std::vector<char32_t> characters;
  for (char32_t code = 0; code < code_points; ++code) {
    if (id_of[code] < 0) continue;
    id_of[code] = static_cast<int32_t>(characters.size());
    characters.push_back(code);
  }
  std::vector<int32_t> tokens;
  for (size_t position = 0; position < text.size();)
    tokens.push_back(id_of[next_code_point(text, position, path)]);
  const auto vocabulary = static_cast<int64_t>(characters.size());
  return window_dataset({.path = path,
                         .tokens = tokens_in_memory(std::move(tokens)),
                         .vocabulary = vocabulary,
                         .codec = std::make_unique<CharacterCodec>(std::move(characters), path)},
                        options);
}

}  // namespace zg::models
