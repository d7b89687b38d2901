#include "zerograd/runtime/text/format.h"

#include <cctype>
#include <cstring>

#include "zerograd/runtime/text/utf8.h"

namespace zg {
namespace {

/// Appends the character at `at` and moves `at` after it. Control characters, which a terminal
/// would interpret, and bytes that are not UTF-8 are written as \x1b; characters in `kept` are not
/// changed.
void append_shown(std::string& line, const std::string& source, size_t& at, const char* kept) {
  size_t end = at + 1;
  bool is_control = true;
  try {
    size_t next = at;
    const char32_t code = next_code_point(source, next, "");
    // Characters that change the direction of the surrounding text count as control characters.
    const bool turns = code == 0x061c || code == 0x200e || code == 0x200f ||
                       (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    is_control = code < 0x20 || (code >= 0x7f && code < 0xa0) || turns;
    end = next;
  } catch (const ConfigError&) {  // this byte is not UTF-8
  }
  if (source[at] != '\0' && std::strchr(kept, source[at])) is_control = false;
  constexpr const char* digits = "0123456789abcdef";
  for (; at < end; ++at) {
    const auto byte = static_cast<unsigned char>(source[at]);
    if (is_control)
      line += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    else
      line += source[at];
  }
}

// Damerau-Levenshtein: two swapped neighbours count as one error. SIZE_MAX: above `most`.
size_t edit_distance(const std::string& a, const std::string& b, size_t most) {
  // The difference of the lengths is a lower bound. It is checked first, because `a` may be long.
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > most) return SIZE_MAX;
  const size_t width = b.size() + 1;
  std::vector<size_t> table((a.size() + 1) * width);
  const auto at = [&](size_t i, size_t j) -> size_t& { return table[i * width + j]; };
  size_t before = 0;  // least of the row above
  for (size_t i = 0; i <= a.size(); ++i) {
    size_t row_minimum = SIZE_MAX;
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        at(i, j) = i + j;
        row_minimum = std::min(row_minimum, at(i, j));
        continue;
      }
      const size_t replaced = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({replaced, at(i - 1, j) + 1, at(i, j - 1) + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      row_minimum = std::min(row_minimum, at(i, j));
    }
    if (std::min(row_minimum, before) > most) return SIZE_MAX;
    before = row_minimum;
  }
  return table.back() > most ? SIZE_MAX : table.back();
}

}  // namespace

std::string printable(const std::string& source, size_t most) {
  std::string line;
  size_t at = 0;
  for (size_t count = 0; at < source.size(); ++count) {
    if (count == most) return line + "...";
    append_shown(line, source, at, "");
  }
  return line;
}

std::string escape_controls(const std::string& message) {
  std::string result;
  for (size_t at = 0; at < message.size();) append_shown(result, message, at, "\n\t");
  return result;
}

void print_escaped(std::FILE* stream, const std::string& lines) {
  std::string text = escape_controls(lines);
  if (!text.ends_with('\n')) text += '\n';
  std::fwrite(text.data(), 1, text.size(), stream);
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t smallest = SIZE_MAX;
  int beginnings = 0;
  std::string completed;
  // Up to a third of the letters may be wrong; beyond that it is another word.
  const size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  const size_t most = std::max<size_t>(1, letters / 3);
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate, most);
    if (distance < smallest) {
      smallest = distance;
      best = candidate;
    }
    if (word.size() >= 3 && candidate.compare(0, word.size(), word) == 0) {
      ++beginnings;
      completed = candidate;
    }
  }
  if (smallest < letters) return best;
  return beginnings == 1 ? completed : "";
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string candidate = nearest(word, candidates);
  return candidate.empty() ? "" : fmt::format("; did you mean {}?", candidate);
}

std::string lower_case(std::string word) {
  for (char& letter : word)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return word;
}

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string joined;
  for (const std::string& part : parts) joined += (joined.empty() ? "" : separator) + part;
  return joined;
}
std::string join(std::vector<std::string> parts, const std::string& separator,
                 const std::string& last) {
  if (parts.size() < 2) return join(parts, separator);
  const std::string end = last + parts.back();
  parts.pop_back();
  return join(parts, separator) + end;
}

std::string mib(int64_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / (1 << 20));
}

std::string gib(double bytes) { return fmt::format("{:.1f} GiB", bytes / 0x1p30); }

}  // namespace zg
