#include "tools/config/tree.h"

#include "tools/text.h"
#include "zerograd/models/utf8.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {

std::string shown(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null:
      return "null";
    case Value::Kind::array:
      return "a list of " + std::to_string(value.items.size());
    case Value::Kind::object:
      return "an object {...}";
    case Value::Kind::text:
      return "'" + printable(value.text) + "'";
    default:
      return printable(value.text);
  }
}

// No key of ours is as deep; a line of an error is no place for a whole file.
constexpr size_t longest_path = 120;

std::string place(const std::string& file, Position at, const std::string& path) {
  return file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": " +
         (path.empty() ? "" : printable(path, longest_path) + ": ");
}

void check_text(const std::string& source, const std::string& file) {
  Position here;
  size_t at = source.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  for (; at < source.size(); ++here.column) {
    const auto byte = static_cast<unsigned char>(source[at]);
    bool valid = (byte >= 0x20 || byte == '\t' || byte == '\r' || byte == '\n') && byte != 0x7F;
    try {
      models::next_code_point(source, at, file);
    } catch (const ConfigError&) {
      valid = false;
    }
    if (!valid)
      throw ConfigError(place(file, here, "") + "the byte " + std::to_string(byte) +
                        " is no text; expected UTF-8, got something else; try a text file");
    if (byte == '\n') here = {here.line + 1, 0};
  }
}

}  // namespace zg::tools
