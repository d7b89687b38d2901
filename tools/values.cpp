#include "tools/values.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "tools/text.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {
namespace {

[[noreturn]] void refuse(const std::string& flag, const std::string& expected,
                         const std::string& value) {
  throw ConfigError(flag + ": expected " + expected + ", got '" + printable(value) + "'");
}

// Reads a number at the front of `value`; `rest` is what follows it.
bool read_double(const std::string& value, double& number, std::string& rest) {
  const char* last = value.data() + value.size();
  const auto [end, error] = std::from_chars(value.data(), last, number);
  if (error != std::errc() || !std::isfinite(number)) return false;
  rest.assign(end, last);
  return true;
}

// 5_000_000 without what separates its digits; any other word as it is.
std::string without_separators(const std::string& value) {
  std::string digits;
  for (size_t i = 0; i < value.size(); ++i) {
    const bool between = i > 0 && i + 1 < value.size() && value[i - 1] != '_';
    if (value[i] == '_' && between) continue;
    if (!std::isdigit(static_cast<unsigned char>(value[i]))) return value;
    digits += value[i];
  }
  return digits;
}

// 5e8 and 1e3 count as whole numbers wherever a double holds them exactly, and Python's 5_000_000.
bool read_integer(const std::string& given, int64_t& number) {
  const std::string value = without_separators(given);
  const char* last = value.data() + value.size();
  const auto [end, error] = std::from_chars(value.data(), last, number);
  if (error == std::errc() && end == last) return true;
  double real = 0.0;
  std::string rest;
  if (!read_double(value, real, rest) || !rest.empty()) return false;
  if (real != std::floor(real) || std::fabs(real) > 0x1p53) return false;
  number = static_cast<int64_t>(real);
  return true;
}

// Damerau's: two neighbours in the wrong order are one slip, not two. SIZE_MAX: above `most`.
size_t edit_distance(const std::string& a, const std::string& b, size_t most) {
  // No slip makes up for so much length, and a word may be a whole file.
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > most) return SIZE_MAX;
  const size_t width = b.size() + 1;
  std::vector<size_t> table((a.size() + 1) * width);
  const auto at = [&](size_t i, size_t j) -> size_t& { return table[i * width + j]; };
  size_t before = 0;  // least of the row above
  for (size_t i = 0; i <= a.size(); ++i) {
    size_t least = SIZE_MAX;
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        at(i, j) = i + j;
        least = std::min(least, at(i, j));
        continue;
      }
      const size_t replaced = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({replaced, at(i - 1, j) + 1, at(i, j - 1) + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      least = std::min(least, at(i, j));
    }
    if (std::min(least, before) > most) return SIZE_MAX;
    before = least;
  }
  return table.back() > most ? SIZE_MAX : table.back();
}

}  // namespace

int64_t parse_integer(const std::string& flag, const std::string& value, int64_t least,
                      int64_t most) {
  int64_t number = 0;
  if (read_integer(value, number) && number >= least && number <= most) return number;
  const std::string border = std::to_string(least);
  refuse(flag,
         number <= most ? "a whole number of " + border + " or more"
                        : "a whole number from " + border + " to " + std::to_string(most),
         value);
}

int64_t parse_size(const std::string& flag, const std::string& value) {
  static const std::vector<std::pair<std::string, double>> units = {
      {"", 1},      {"B", 1},        {"kB", 1e3},     {"KB", 1e3},     {"MB", 1e6},    {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  double number = 0.0;
  std::string unit;
  if (read_double(value, number, unit) && number >= 0.0)
    for (const auto& [name, factor] : units)
      if (unit == name && number * factor < 0x1p62) return static_cast<int64_t>(number * factor);
  const auto lower = [](std::string word) {
    for (char& letter : word) letter = static_cast<char>(std::tolower(letter));
    return word;
  };
  std::string meant;
  for (const auto& [name, factor] : units)
    if (!unit.empty() && (lower(unit) == lower(name) || lower(unit) + "ib" == lower(name)))
      meant = "'; did you mean " + value.substr(0, value.size() - unit.size()) + name + "?";
  throw ConfigError(flag + ": expected a size like 123, 1e9, 512MiB or 2GiB, got '" + value +
                    (meant.empty() ? "'" : meant));
}

double parse_number(const std::string& flag, const std::string& value, const Range& range) {
  double number = 0.0;
  std::string rest;
  const bool inside = read_double(value, number, rest) && rest.empty() &&
                      (range.open_below ? number > range.least : number >= range.least) &&
                      (range.open_above ? number < range.most : number <= range.most);
  if (!inside) refuse(flag, range.words, value);
  return number;
}

bool parse_switch(const std::string& flag, const std::string& value) {
  if (value == "on" || value == "true" || value == "1") return true;
  if (value == "off" || value == "false" || value == "0") return false;
  refuse(flag, "on or off", value);
}

size_t parse_choice(const std::string& flag, const std::string& value,
                    const std::vector<std::string>& choices) {
  const auto found = std::find(choices.begin(), choices.end(), value);
  if (found != choices.end()) return static_cast<size_t>(found - choices.begin());
  throw ConfigError(flag + ": expected " + join(choices, ", ") + ", got '" + printable(value) +
                    "'" + did_you_mean(value, choices));
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t smallest = SIZE_MAX;
  int beginnings = 0;
  std::string completed;
  // A third of the letters wrong is still a slip; more, or all of them, is another word.
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
  return candidate.empty() ? "" : "; did you mean " + candidate + "?";
}

std::string lower(std::string word) {
  for (char& letter : word)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return word;
}

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string joined;
  for (const std::string& part : parts) joined += (joined.empty() ? "" : separator) + part;
  return joined;
}

}  // namespace zg::tools
