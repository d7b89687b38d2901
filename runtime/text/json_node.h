#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "zerograd/runtime/api.h"
#include "zerograd/runtime/text/json.h"

namespace zg {

/// A value on one line, shortened, for error messages.
ZG_API std::string brief(const nlohmann::json& value);

/// A value of a file and its path for messages: "tokenizer.json: model.vocab". null means that the
/// key is absent. A value of another type than asked for is a FileError.
struct ZG_API JsonNode {
  const nlohmann::json& value;
  std::string name;         ///< of the root: the file and ": "
  std::string source = {};  ///< the text of a line of for_each_json_line()
  std::string advice = {};  ///< end of the messages of fail(): "; try ..."

  [[noreturn]] void fail(const std::string& expected) const;    ///< FileError
  [[noreturn]] void refuse(const std::string& expected) const;  ///< Unsupported

  JsonNode at(const std::string& key) const;  ///< null where the key is absent
  std::vector<JsonNode> members() const;
  const std::string& text() const;
  bool flag() const;
  bool flag(bool absent) const;
  double number(double absent) const;
  int64_t count(int64_t absent) const;
  int32_t id() const;

  // These throw Unsupported unless the value is the required one or absent.
  void require(const nlohmann::json& only) const;
  void require_false() const;
  void require_empty() const;

  bool has_type(const char* type) const;  ///< by the member "type"
  void require_type(const char* type) const;
};

/// Reads a file with a JSON object on each line, in UTF-8. Lines that have only white space are
/// skipped. `place` is "PATH:LINE", and the name of `line` begins with it. Throws FileError, with
/// the place, for a line that is not a JSON object. If `use` throws ConfigError, the place is added
/// to its message.
ZG_API void for_each_json_line(
    const std::string& path,
    const std::function<void(const JsonNode& line, const std::string& place)>& use);

}  // namespace zg
