#include "zerograd/runtime/text/json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg {

using nlohmann::json;

std::string brief(const json& value) {
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

void JsonNode::fail(const std::string& expected) const {
  raise<FileError>("{}: expected {}, got {}{}", name, expected, brief(value), advice);
}

void JsonNode::refuse(const std::string& expected) const {
  raise<Unsupported>("{} is {}; expected {}, which is what this version computes", name,
                     brief(value), expected);
}

JsonNode JsonNode::at(const std::string& key) const {
  static const json absent;
  if (!value.is_object()) fail("an object");
  const auto found = value.find(key);
  const bool is_root = name.ends_with(": ");
  return {found == value.end() ? absent : *found, name + (is_root ? "" : ".") + printable(key, 200),
          "", advice};
}

std::vector<JsonNode> JsonNode::members() const {
  if (!value.is_array()) fail("an array");
  std::vector<JsonNode> nodes;
  for (size_t i = 0; i < value.size(); ++i)
    nodes.push_back({value[i], fmt::format("{}[{}]", name, i), "", advice});
  return nodes;
}

const std::string& JsonNode::text() const {
  if (!value.is_string()) fail("a string");
  return value.get_ref<const std::string&>();
}

bool JsonNode::flag() const {
  if (!value.is_boolean()) fail("true or false");
  return value.get<bool>();
}

bool JsonNode::flag(bool absent) const { return value.is_null() ? absent : flag(); }

double JsonNode::number(double absent) const {
  if (value.is_null()) return absent;
  if (!value.is_number()) fail("a number");
  return value.get<double>();
}

int64_t JsonNode::count(int64_t absent) const {
  if (value.is_null()) return absent;
  if (!value.is_number_unsigned() || value.get<uint64_t>() == 0 ||
      value.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()})
    fail("a count");
  return value.get<int64_t>();
}

int32_t JsonNode::id() const {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<int32_t>::max())
    fail("an id");
  return value.get<int32_t>();
}

void JsonNode::require(const json& only) const {
  if (!value.is_null() && value != only) refuse(only.dump());
}

void JsonNode::require_false() const {
  if (flag(false)) refuse("false");
}

void JsonNode::require_empty() const {
  if (!value.is_null() && !text().empty()) refuse("null");
}

bool JsonNode::has_type(const char* type) const { return at("type").text() == type; }

void JsonNode::require_type(const char* type) const {
  if (!has_type(type)) at("type").refuse(fmt::format("\"{}\"", type));
}

void for_each_json_line(
    const std::string& path,
    const std::function<void(const JsonNode& line, const std::string& place)>& use) {
  const std::string text = read_text(path);
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string place = fmt::format("{}:{}", path, number);
    const json object = parse_json_object(line, path, {.line = number});
    try {
      use({object, place + ": ", line}, place);
    } catch (const ConfigError& error) {
      if (std::string_view(error.what()).starts_with(place)) throw;
      raise<ConfigError>("{}: {}", place, error.what());
    }
  }
}

}  // namespace zg
