#include "zerograd/runtime/command_line/flags.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

namespace zg {
namespace {

[[noreturn]] void refuse(const std::string& flag, const std::string& expected,
                         const std::string& value) {
  raise<ConfigError>("{}: expected {}, got '{}'", flag, expected, printable(value));
}

// Reads a number at the front of `value`; `rest` is what follows it.
bool read_double(const std::string& value, double& number, std::string& rest) {
  const char* last = value.data() + value.size();
  const auto [end, error] = std::from_chars(value.data(), last, number);
  if (error != std::errc() || !std::isfinite(number)) return false;
  rest.assign(end, last);
  return true;
}

// Removes the separators of 5_000_000; returns any other word unchanged.
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

// Accepts 5e8 and 1e3 (whole numbers that a double holds exactly), and Python's 5_000_000.
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

std::string with_default(const std::string& help, const std::string& shown) {
  return shown.empty() ? help : fmt::format("{} [{}]", help, shown);
}

}  // namespace

int64_t parse_integer(const std::string& flag, const std::string& value, int64_t minimum,
                      int64_t maximum) {
  int64_t number = 0;
  if (read_integer(value, number) && number >= minimum && number <= maximum) return number;
  refuse(flag,
         number <= maximum ? fmt::format("a whole number of {} or more", minimum)
                           : fmt::format("a whole number from {} to {}", minimum, maximum),
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
  std::string meant;
  for (const auto& [name, factor] : units)
    if (!unit.empty() &&
        (lower_case(unit) == lower_case(name) || lower_case(unit) + "ib" == lower_case(name)))
      meant =
          fmt::format("; did you mean {}{}?", value.substr(0, value.size() - unit.size()), name);
  raise<ConfigError>("{}: expected a size like 123, 1e9, 512MiB or 2GiB, got '{}'{}", flag, value,
                     meant);
}

double parse_number(const std::string& flag, const std::string& value, const Range& range) {
  double number = 0.0;
  std::string rest;
  const bool inside = read_double(value, number, rest) && rest.empty() &&
                      (range.open_below ? number > range.minimum : number >= range.minimum) &&
                      (range.open_above ? number < range.maximum : number <= range.maximum);
  const double size = std::fabs(number);
  if (rest.empty() && (size > 3e38 || (size > 0.0 && size < std::numeric_limits<float>::min())))
    refuse(flag, range.words + std::string(", whose size f32 holds (1.2e-38 to 3e38)"), value);
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
  const auto found = std::ranges::find(choices, value);
  if (found != choices.end()) return static_cast<size_t>(found - choices.begin());
  raise<ConfigError>("{}: expected {}, got '{}'{}", flag, join(choices, ", "), printable(value),
                     did_you_mean(value, choices));
}

template <class T>
Flag integer_flag(Names names, T& target, const std::string& help, Count count) {
  std::string shown;
  if constexpr (std::is_same_v<T, int64_t>) shown = std::to_string(target);
  return {std::move(names), "N", with_default(help, count.shown ? count.shown : shown),
          [&target, count](const std::string& name, const std::string& value) {
            target = parse_integer(name, value, count.minimum, largest_count);
          }};
}
template Flag integer_flag(Names, int64_t&, const std::string&, Count);
template Flag integer_flag(Names, std::optional<int64_t>&, const std::string&, Count);

Flag size_flag(Names names, int64_t& target, const std::string& help) {
  return {std::move(names), "SIZE", help,
          [&target](const std::string& name, const std::string& value) {
            target = parse_size(name, value);
          }};
}

template <class T>
Flag number_flag(Names names, T& target, const Range& range, const std::string& help,
                 const char* shown) {
  return {std::move(names), "X", with_default(help, shown ? shown : fmt::format("{:g}", target)),
          [&target, range](const std::string& name, const std::string& value) {
            target = static_cast<T>(parse_number(name, value, range));
          }};
}
template Flag number_flag(Names, double&, const Range&, const std::string&, const char*);
template Flag number_flag(Names, float&, const Range&, const std::string&, const char*);

Flag seed_flag(uint64_t& target, const std::string& help) {
  return {{"--seed"},
          "N",
          with_default(help, std::to_string(target)),
          [&target](const std::string& name, const std::string& value) {
            target = static_cast<uint64_t>(parse_integer(name, value, 0));
          }};
}

Flag text_flag(Names names, const std::string& value, std::string& target,
               const std::string& help) {
  return {std::move(names), value, help,
          [&target, value](const std::string& name, const std::string& given) {
            if (given.empty()) raise<ConfigError>("{}: expected {}, got nothing", name, value);
            target = given;
          }};
}

Flag path_flag(Names names, const std::string& value, std::string& target, PathUse use,
               const std::string& help) {
  Flag flag = text_flag(std::move(names), value, target, help);
  flag.use = use;
  flag.paths = [use, &target] { return used(use, {target}); };
  return flag;
}

Flag positional(const char* name, const char* help, std::string& target, PathUse use) {
  Flag flag = path_flag({}, name, target, use, help);
  flag.set = [&target](const std::string&, const std::string& value) { target = value; };
  return flag;
}

Flag switch_flag(Names names, bool& target, const std::string& help) {
  return {std::move(names), "", help, [&target](const std::string& name, const std::string& value) {
            target = parse_switch(name, value);
          }};
}

Flag device_flag(Device::Type& type) {
  return {
      {"--device"},
      "cpu|cuda|hpu",
      "device of the ranks, gpu is cuda; rank R uses accelerator R modulo their number [cpu]",
      [&type](const std::string& name, const std::string& value) {
        // cpu:0, cuda:0 and hpu:0 are accepted and mean the type: the first rank has index 0.
        const std::string type_name = value.starts_with("gpu") ? "cuda" + value.substr(3) : value;
        constexpr Device::Type types[] = {Device::Type::cpu, Device::Type::cuda, Device::Type::hpu};
        type = types[parse_choice(name, type_name,
                                  {"cpu", "cuda", "hpu", "cpu:0", "cuda:0", "hpu:0"}) %
                     std::size(types)];
      }};
}

Flag use_hpu_flag(Device::Type& type) {
  return {{"--use-hpu"}, "", "", [&type](const std::string& name, const std::string& value) {
            if (parse_switch(name, value)) type = Device::Type::hpu;
          }};
}

}  // namespace zg
