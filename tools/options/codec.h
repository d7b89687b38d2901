#pragma once

#include <nlohmann/json.hpp>

#include "tools/options/fields.h"

namespace zg::tools {

using Json = nlohmann::ordered_json;

/// The operations of the table on the fields of one type.
struct Codec {
  size_t bytes;
  Json (*write)(const void* value);
  /// Throws ConfigError that says what was expected.
  void (*read)(const Json& json, void* value, const Bounds& bounds);
  void (*copy)(const void* from, void* to);
  Flag (*flag)(const FlagRow& row, void* target);
};

/// The codecs of the types that fields may have. A type that is not in its list has none.
std::vector<const Codec*> all_codecs();

/// The value of a field as JSON. A field of TrainOptions alone is not in a RunSpec.
Json value_of(const Field& field, const RunSpec& spec);
Json value_of(const Field& field, const TrainOptions& options);

}  // namespace zg::tools
