#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/runtime/command_line/flags.h"

// JSON, copies and flags of each type of a field.
namespace zg::tools {

using Json = nlohmann::ordered_json;

/// The range of a whole number in a checkpoint.
struct Between {
  int64_t minimum, maximum;
};
/// Any number, NaN and infinities too.
struct AnyNumber {};
/// Numbers have bounds: those of their flag, if there is one.
using Bounds = std::variant<std::monostate, Between, Range, AnyNumber>;

/// A value on the command line, and the flag that errors name.
struct FlagValue {
  const std::string &flag, &value;
};

/// A flag, for any TrainOptions.
struct FlagRow {
  Names names = {};                              ///< empty: no flag sets the field
  std::string value = {};                        ///< how help shows the value
  std::string help = {};                         ///< without the default
  const char* shown = nullptr;                   ///< the default in help; null: the field's value
  int64_t minimum = 0, maximum = largest_count;  ///< of a whole number
  Range range = {};                              ///< of another number
  std::vector<std::string> choices = {};         ///< words for the enumerators, in their order
  PathUse use = PathUse::none;
  /// The paths that a value means. Null: the value is one path.
  std::vector<NamedPath> (*paths)(const std::string& value) = nullptr;
  int max_words = 1;                                                 ///< as Flag::max_words
  std::vector<std::pair<std::string, std::string>> with_value = {};  ///< as Flag::with_value
  /// Sets what a value with a syntax of its own means. Null: the codec of the field's type reads
  /// it.
  void (*parse)(TrainOptions&, const FlagValue&) = nullptr;
  /// Makes a flag that other commands have, too. Null: it follows from the other members.
  Flag (*make)(TrainOptions&) = nullptr;
};

/// The operations of the table on the fields of one type.
struct Codec {
  size_t bytes;
  Json (*write)(const void* value);
  /// Throws ConfigError that says what was expected.
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
