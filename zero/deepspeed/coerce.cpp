#include <algorithm>
#include <charconv>
#include <cmath>

#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/deepspeed/check.h"

namespace zg::zero::deepspeed {
namespace {

std::vector<std::string> split(const std::string& words) {
  std::vector<std::string> parts;
  for (size_t first = 0; first <= words.size();) {
    const size_t end = std::min(words.find('|', first), words.size());
    parts.push_back(words.substr(first, end - first));
    first = end + 1;
  }
  return parts;
}

std::string bounds(const Row& row, const std::string& number) {
  if (row.maximum >= 2147483647.0)
    return fmt::format("{} of {} or more", number, shown(row.minimum));
  return fmt::format("{} from {} to {}", number, shown(row.minimum), shown(row.maximum));
}

std::string expected_of(const Row& row) {
  const Type type = row.type;
  std::string words = type == Type::boolean   ? "true or false"
                      : type == Type::integer ? bounds(row, "a whole number")
                      : type == Type::number  ? bounds(row, "a number")
                      : type == Type::numbers
                          ? "two numbers of 0 or more and below 1, like [0.9, 0.999]"
                      : type == Type::choice ? join(split(row.choices), ", ")
                      : type == Type::text   ? "a string"
                                             : "an object {...}";
  if (std::string(row.fallback) == "null" && row.type != Type::section) words += ", or null";
  return words + (row.automatic ? ", or \"auto\"" : "");
}

std::string advice(const Row& row, const Value& value) {
  if (value.kind == Value::Kind::text && !value.quoted && value.text.ends_with(","))
    return "quotes: a string without them goes to the end of its line, the comma too";
  const std::string fallback = row.fallback;
  if (row.type == Type::section) return "{ } after the key";
  if (row.type == Type::choice && value.kind == Value::Kind::text) {
    const std::string near = nearest(lower_case(value.text), split(lower_case(row.choices)));
    if (!near.empty()) return fmt::format("\"{}\"", near);
  }
  if (row.automatic && fallback.empty()) return "\"auto\"";
  if (fallback.empty()) return "a name in quotes";
  return fallback == "null" ? "leaving it out" : fallback + ", the default";
}

[[noreturn]] void refuse(const Row& row, const Value& value, const std::string& where) {
  raise<ConfigError>("{}expected {}, got {}; try {}", where, expected_of(row), shown(value),
                     advice(row, value));
}

bool read_number(const Value& value, double& number) {
  if (value.kind == Value::Kind::number) return number = value.number, true;
  if (value.kind != Value::Kind::text) return false;
  std::string word = value.text;
  while (!word.empty() && word.back() == ' ') word.pop_back();
  word.erase(0, std::min(word.find_first_not_of(' '), word.size()));
  const char* last = word.data() + word.size();
  const auto [end, error] = std::from_chars(word.data(), last, number);
  return error == std::errc() && end == last && std::isfinite(number);
}

bool read_boolean(const Value& value, bool& boolean) {
  if (value.kind == Value::Kind::boolean) return boolean = value.boolean, true;
  const std::string word = lower_case(value.text);
  const bool is_word = value.kind == Value::Kind::text;
  const bool is_number = value.kind == Value::Kind::number;
  const auto one_of = [&](const std::vector<std::string>& words) {
    return std::ranges::find(words, word) != words.end();
  };
  if ((is_number && value.number == 1.0) ||
      (is_word && one_of({"true", "1", "yes", "y", "on", "t"})))
    return boolean = true, true;
  boolean = false;
  return (is_number && value.number == 0.0) ||
         (is_word && one_of({"false", "0", "no", "n", "off", "f"}));
}

}  // namespace

bool is_disabled(const Value& value) {
  bool boolean = true;
  if (value.kind != Value::Kind::object)
    return lower_case(value.text) == "none" || (read_boolean(value, boolean) && !boolean);
  const auto is_one = [](const Value& v) {
    return v.kind == Value::Kind::number && v.number == 1.0;
  };
  bool all_off = true;
  for (const auto& [key, at, inner] : value.members) {
    const bool off = is_disabled(inner);
    if (key == "enabled" || key == "deepcompile" || key == "dynamo_backend") return off;
    all_off = all_off && (off || is_one(inner));
  }
  return all_off;
}

Setting coerced(const Row& row, const Value& value, const std::string& where) {
  Setting setting{.row = &row, .given = true};
  if (value.kind == Value::Kind::null && std::string(row.fallback) == "null") {
    setting.null = true;
    return setting;
  }
  const auto within = [&](double number) { return number >= row.minimum && number <= row.maximum; };
  bool fits = true;
  switch (row.type) {
    case Type::boolean:
      fits = read_boolean(value, setting.boolean);
      break;
    case Type::integer:
      fits = read_number(value, setting.number) && setting.number == std::floor(setting.number) &&
             within(setting.number);
      // The largest number that rows accept is 2^63; it means sys.maxsize.
      if (fits)
        setting.integer =
            setting.number < 0x1p63 ? static_cast<int64_t>(setting.number) : INT64_MAX;
      break;
    case Type::number:
      fits = read_number(value, setting.number) && within(setting.number);
      break;
    case Type::numbers:
      fits = value.kind == Value::Kind::array && value.items.size() == 2;
      for (const Value& item : value.items) {
        double number = 0.0;
        fits = fits && read_number(item, number) && number >= 0.0 && number < 1.0;
        setting.numbers.push_back(number);
      }
      break;
    case Type::choice:
      fits = false;
      if (value.kind == Value::Kind::text)
        for (const std::string& choice : split(row.choices))
          if (lower_case(value.text) == lower_case(choice)) {
            setting.text = choice;
            fits = true;
          }
      break;
    case Type::text:
      fits = value.kind == Value::Kind::text && !value.text.empty();
      setting.text = value.text;
      break;
    case Type::any:
      setting.disabled = is_disabled(value);
      break;
    case Type::section:
      fits = value.kind == Value::Kind::object;
      break;
  }
  if (!fits) refuse(row, value, where);
  return setting;
}

Setting default_of(const Row& row, DeepSpeedVersion version) {
  const Value literal =
      read_hjson(std::string("{ value: ") + fallback_of(row, version) + " }", "default");
  Setting setting = coerced(row, literal.members.front().value, "");
  setting.given = false;
  return setting;
}

bool is_default(const Setting& setting, DeepSpeedVersion version) {
  if (setting.row->type == Type::any && setting.disabled) return true;
  const Setting fallback = default_of(*setting.row, version);
  if (fallback.null)
    return setting.null || (setting.row->type == Type::boolean && !setting.boolean);
  return !setting.null && setting.boolean == fallback.boolean &&
         setting.number == fallback.number && setting.text == fallback.text;
}

}  // namespace zg::zero::deepspeed
