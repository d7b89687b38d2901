#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "zerograd/runtime/api.h"

namespace zg {

/// Deepest nesting of a text: code that copies, compares and writes values recurses to that depth.
constexpr int json_depth_limit = 64;

struct JsonRules {
  int max_depth = json_depth_limit;
  /// A key that an object has twice is an error. Otherwise the last one counts, as in Python.
  bool unique_keys = false;
  int64_t line = 1;         ///< of the file, where the text begins
  std::string advice = {};  ///< end of each message: "; try ..."
};

/// The one reader of JSON. Parses an object in UTF-8, in time linear in its length. Throws
/// FileError, as "name:line:column: what", for other values, anything after the object, a zero byte
/// anywhere, invalid UTF-8, a number too large for a double, and what `rules` forbid.
/// `Json` is nlohmann::json, or nlohmann::ordered_json, whose keys must be unique.
template <class Json = nlohmann::json>
Json parse_json_object(std::string_view text, const std::string& name, const JsonRules& rules = {});

extern template ZG_API nlohmann::json parse_json_object(std::string_view, const std::string&,
                                                        const JsonRules&);
extern template ZG_API nlohmann::ordered_json parse_json_object(std::string_view,
                                                                const std::string&,
                                                                const JsonRules&);

}  // namespace zg
