#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/runtime/command_line/flags.h"

// How a field of each type is written to JSON, read from it, copied, and set by a flag. The table
// of fields is in fields.h.
namespace zg::tools {

using Json = nlohmann::ordered_json;

/// The range of a whole number in a checkpoint.
struct Between {
  int64_t minimum, maximum;
};
/// Any number, NaN and infinities too.
struct AnyNumber {};
/// The bounds of a number in a checkpoint. std::monostate: those of its flag, if there is one.
using Bounds = std::variant<std::monostate, Between, Range, AnyNumber>;

/// A value on the command line, and the flag that errors name.
struct FlagValue {
  const std::string &flag, &value;
};

/// The row of a flag, from which the Flag of any TrainOptions object is made.
struct FlagRow {
  Names names = {};                              ///< empty: no flag sets the field
  std::string value = {};                        ///< how help shows the value
  std::string help = {};                         ///< without the default
  const char* shown = nullptr;                   ///< the default in help; null: the field's value
  int64_t minimum = 0, maximum = largest_count;  ///< bounds of a whole number
  Range range = {};                              ///< bounds of a floating-point number
  std::vector<std::string> choices = {};         ///< words for the enumerators, in their order
  PathUse use = PathUse::none;
  /// Returns the paths that a value names. Null: the value is one path.
  std::vector<NamedPath> (*paths)(const std::string& value) = nullptr;
  int max_words = 1;                                                 ///< as Flag::max_words
  std::vector<std::pair<std::string, std::string>> with_value = {};  ///< as Flag::with_value
  /// Parses a value that has a syntax of its own and sets the fields that it stands for. Null: the
  /// codec of the field's type reads it.
  void (*parse)(TrainOptions&, const FlagValue&) = nullptr;
  /// Makes a flag that other commands have, too. Null: the flag is made from the other members.
  Flag (*make)(TrainOptions&) = nullptr;
};

/// The functions with which the table of fields handles a field of one type.
struct Codec {
  size_t bytes;
  Json (*write)(const void* value);
  /// Throws ConfigError, which names what was expected.
  void (*read)(const Json& json, void* value, const Bounds& bounds);
  void (*copy)(const void* from, void* to);
  Flag (*flag)(const FlagRow& row, void* target);
};
/// The codec of a type in all_codecs().
template <class T>
const Codec& codec_of();
/// The codecs of the types that fields may have.
std::vector<const Codec*> all_codecs();

}  // namespace zg::tools
