#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

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

}  // namespace zg
