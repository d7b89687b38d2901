#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

// How GPT-2 writes bytes in tokenizer files: a printable character for each of the 256. Those that
// are printable in Latin-1 stand for themselves, the others for U+0100 and on, in order: a space
// is "Ġ".
namespace zg::models {

/// The character of each byte, in UTF-8.
const std::array<std::string, 256>& byte_alphabet();
/// The bytes in the order of their characters' code points.
std::array<unsigned char, 256> bytes_by_character();

std::string to_alphabet(std::string_view bytes);
/// Absent for a character that stands for no byte.
std::optional<std::string> from_alphabet(std::string_view characters);

}  // namespace zg::models
