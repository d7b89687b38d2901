#include "tools/config/tree.h"

namespace zg::tools {
namespace {

// A line of an error is no place for a whole file.
std::string shortened(const std::string& text) {
  constexpr size_t longest = 40;
  if (text.size() <= longest) return text;
  size_t end = longest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

}  // namespace

std::string shown(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null:
      return "null";
    case Value::Kind::array:
      return "a list of " + std::to_string(value.items.size());
    case Value::Kind::object:
      return "an object {...}";
    case Value::Kind::text:
      return "'" + shortened(value.text) + "'";
    default:
      return shortened(value.text);
  }
}

std::string place(const std::string& file, Position at, const std::string& path) {
  return file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": " +
         (path.empty() ? "" : path + ": ");
}

}  // namespace zg::tools
