#include <cerrno>
#include <fstream>
#include <system_error>

#include "models/utf8.h"
#include "models/windows.h"
#include "runtime/error.h"

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

}  // namespace

std::unique_ptr<Dataset> text_dataset(const std::string& path, const TextOptions& options) {
  const std::string text = read_text(path);
  if (text.empty()) throw ConfigError(path + ": the file is empty; expected text");
  constexpr char32_t code_points = 0x110000;
  std::vector<int32_t> id_of(code_points, -1);
  for (size_t position = 0; position < text.size();)
    id_of[next_code_point(text, position, path)] = 0;

  TokenSequence sequence{.path = path};
  for (char32_t code = 0; code < code_points; ++code) {
    if (id_of[code] < 0) continue;
    id_of[code] = static_cast<int32_t>(sequence.characters.size());
    sequence.characters.push_back(code);
  }
  sequence.vocabulary = static_cast<int64_t>(sequence.characters.size());
  if (sequence.vocabulary > 65536)
    throw ConfigError(path + ": expected at most 65536 different characters, got " +
                      std::to_string(sequence.vocabulary));
  for (size_t position = 0; position < text.size();)
    sequence.tokens.push_back(static_cast<uint16_t>(id_of[next_code_point(text, position, path)]));
  return window_dataset(std::move(sequence), options);
}

}  // namespace zg::models
