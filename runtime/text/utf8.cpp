#include "zerograd/runtime/text/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "zerograd/runtime/error.h"

namespace zg {
namespace {

constexpr uint64_t high_bits = 0x8080808080808080;

uint8_t byte_at(std::string_view text, size_t i) { return static_cast<uint8_t>(text[i]); }

// The length of a code point that begins with this byte; 0: no code point does.
size_t length_from_lead(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xf0 && lead < 0xf5) return 4;
  return 0;
}

// Whether the second byte is allowed after this lead byte. Not allowed are longer encodings than
// needed, surrogates and code points beyond U+10FFFF.
bool may_follow(uint8_t lead, uint8_t second) {
  if (lead == 0xe0) return second >= 0xa0 && second <= 0xbf;
  if (lead == 0xed) return second >= 0x80 && second <= 0x9f;
  if (lead == 0xf0) return second >= 0x90 && second <= 0xbf;
  if (lead == 0xf4) return second >= 0x80 && second <= 0x8f;
  return (second & 0xc0) == 0x80;
}

// The number of bytes from `begin` on that are a code point or the beginning of one; 0: none.
size_t part_length(std::string_view text, size_t begin) {
  const uint8_t lead = byte_at(text, begin);
  const size_t length = std::min(length_from_lead(lead), text.size() - begin);
  for (size_t i = 1; i < length; ++i) {
    const uint8_t next = byte_at(text, begin + i);
    if (i == 1 ? !may_follow(lead, next) : (next & 0xc0) != 0x80) return i;
  }
  return length;
}

bool is_whole(std::string_view text, size_t begin, size_t length) {
  return length > 0 && length == length_from_lead(byte_at(text, begin));
}

}  // namespace

char32_t next_code_point(std::string_view text, size_t& position, const std::string& name) {
  const size_t begin = position;
  const size_t length = part_length(text, begin);
  if (!is_whole(text, begin, length))
    throw ConfigError(name + ": invalid UTF-8 at byte " + std::to_string(begin) +
                      "; convert the text to UTF-8 first");
  const uint8_t lead = byte_at(text, begin);
  char32_t code = length == 1 ? lead : lead & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) code = code << 6 | (byte_at(text, begin + i) & 0x3fu);
  position = begin + length;
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

size_t valid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (at + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & high_bits) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const size_t length = part_length(text, at);
    if (!is_whole(text, at, length)) break;
    at += length;
  }
  return at;
}

size_t unfinished_utf8(std::string_view text) {
  for (size_t length = 1; length < longest_utf8 && length <= text.size(); ++length) {
    const size_t begin = text.size() - length;
    if ((byte_at(text, begin) & 0xc0) == 0x80) continue;
    const bool unfinished = part_length(text, begin) == length && !is_whole(text, begin, length);
    return unfinished ? length : 0;
  }
  return 0;
}

std::string readable_utf8(std::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    const size_t valid = valid_utf8(bytes.substr(at));
    text += bytes.substr(at, valid);
    at += valid;
    if (at == bytes.size()) break;
    text += utf8(0xfffd);
    at += std::max<size_t>(part_length(bytes, at), 1);
  }
  return text;
}

}  // namespace zg
