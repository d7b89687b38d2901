#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg {

/// The deepest nesting that a JSON text may have. Code that copies, compares or writes values
/// recurses to this depth.
constexpr int json_depth_limit = 64;

/// Limits of parse_json_object(), and parts of its error messages.
struct JsonRules {
  int max_depth = json_depth_limit;
  /// True: an object that has a key twice is an error. False: the last value of the key is used, as
  /// in Python.
  bool unique_keys = false;
  int64_t line = 1;         ///< number of the file's line on which the text begins
  std::string advice = {};  ///< added to the end of each message: "; try ..."
};

/// Parses a JSON object in UTF-8, in time linear in its length. All JSON files are read by this
/// function, except DeepSpeed's configs (zero/deepspeed/hjson.h). Throws FileError, as
/// "name:line:column: reason", for a value that is not an object, for text after the object, a zero
/// byte, invalid UTF-8, a number too large for a double, and a text that breaks one of `rules`.
/// `Json` is nlohmann::json or nlohmann::ordered_json. With ordered_json keys must always be
/// unique.
template <class Json = nlohmann::json>
Json parse_json_object(std::string_view text, const std::string& name, const JsonRules& rules = {});

extern template ZG_API nlohmann::json parse_json_object(std::string_view, const std::string&,
                                                        const JsonRules&);
extern template ZG_API nlohmann::ordered_json parse_json_object(std::string_view,
                                                                const std::string&,
                                                                const JsonRules&);

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
