#include "models/utf8.h"

#include "runtime/error.h"

namespace zg::models {
namespace {

constexpr char32_t largest_code_point = 0x10ffff;
constexpr char32_t smallest_of_length[] = {0, 0, 0x80, 0x800, 0x10000};

int length_from_lead(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc0 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xf0 && lead < 0xf8) return 4;
  return 0;
}

bool is_surrogate(char32_t code) { return code >= 0xd800 && code < 0xe000; }

}  // namespace

char32_t next_code_point(std::string_view text, size_t& position, const std::string& name) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const size_t begin = position;
  const int length = length_from_lead(byte(begin));
  bool valid = length > 0 && begin + static_cast<size_t>(length) <= text.size();
  char32_t code = length == 1 ? byte(begin) : byte(begin) & (0x7fu >> length);
  for (int i = 1; valid && i < length; ++i) {
    const uint8_t next = byte(begin + static_cast<size_t>(i));
    valid = (next & 0xc0) == 0x80;
    code = code << 6 | (next & 0x3fu);
  }
  if (!valid || code < smallest_of_length[length] || is_surrogate(code) ||
      code > largest_code_point)
    throw ConfigError(name + ": invalid UTF-8 at byte " + std::to_string(begin) +
                      "; convert the text to UTF-8 first");
  position = begin + static_cast<size_t>(length);
  return code;
}

std::string utf8(char32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  const int length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  std::string bytes(static_cast<size_t>(length), '\0');
  for (int i = length - 1; i > 0; --i, code >>= 6)
    bytes[static_cast<size_t>(i)] = static_cast<char>(0x80 | (code & 0x3f));
  bytes[0] = static_cast<char>((0xf0 << (4 - length) & 0xf0) | static_cast<int>(code));
  return bytes;
}

}  // namespace zg::models
