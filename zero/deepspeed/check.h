#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/zero/deepspeed/deepspeed.h"
#include "zerograd/zero/deepspeed/hjson.h"
#include "zerograd/zero/deepspeed/schema.h"

namespace zg::zero::deepspeed {

/// The value of one key, converted to its row's type: from the file, or the default.
struct Setting {
  const Row* row = nullptr;
  Position at;             ///< position of the key
  bool given = false;      ///< false: the default
  bool automatic = false;  ///< "auto": the run computes the value
  bool null = false;
  bool disabled = false;  ///< false, "no", {} or a block that is switched off: it has no effect
  bool boolean = false;
  int64_t integer = 0;
  double number = 0.0;
  std::string text;
  std::vector<double> numbers;
};

/// A valid config: its keys, and the defaults of every section in it.
struct CheckedConfig {
  std::string file;
  DeepSpeedVersion version = DeepSpeedVersion::v0_19;
  std::map<std::string, Setting> settings;  ///< by section and key, "adam.lr"
  std::vector<std::string> warnings;        ///< unknown keys of a lenient check
  /// One line for each key without effect, with the reason.
  std::vector<std::string> without_effect;
  /// The first requested feature that is not supported.
  std::optional<std::string> unsupported;

  /// Null: the config has neither the key nor its section.
  const Setting* find(const std::string& section, const std::string& key) const;
  bool is_on(const std::string& section, const std::string& key) const;  ///< a boolean that is true
  /// Each key with its value, "zero_optimization.stage = 2", followed by " (default)" for a
  /// default.
  std::vector<std::string> state() const;
  std::string place_of(const Setting& setting) const;  ///< "ds.json:3:5: key: "
};

/// Checks a config against the rows of schema.h. Throws ConfigError for an unknown, misplaced or
/// contradictory key, a wrong type or range; each message has the position, what was expected and
/// what to try. `section`: "" for DeepSpeed's top level, or "accelerate".
CheckedConfig check_config(const Value& root, const std::string& file, DeepSpeedVersion version,
                           bool lenient, const std::string& section = "");

/// Checks combinations of keys, each of which is valid. Throws ConfigError, or records the
/// combination as unsupported.
void check_contradictions(CheckedConfig& config);

/// Records an unsupported feature, if it is the first one.
void note_unsupported(CheckedConfig& config, const std::string& message);

/// True for a value without effect: false, "no", {}, an object whose switch (enabled, deepcompile
/// or dynamo_backend) is off, or one without a switch whose members are 1 or have no effect.
bool is_disabled(const Value& value);

/// Converts a value to the row's type as pydantic does: "true" and 1 are booleans; 2e8, 50000000.0
/// and "15" are whole numbers. Throws ConfigError, beginning with `where`.
Setting coerced(const Row& row, const Value& value, const std::string& where);

/// The row's default. It must have one.
Setting default_of(const Row& row, DeepSpeedVersion version);

/// True if an `only` row accepts this value.
bool is_default(const Setting& setting, DeepSpeedVersion version);

// The steps of read_deepspeed_config(), for programs that need only one of them.

struct Source {
  std::string file;  ///< its name in errors: the path, or `name` for a text without a file
  std::string text;
};

/// Reads a config from a file, from its text, or from base64, as DeepSpeed does. Throws FileError,
/// beginning with `name`; ConfigError for a file of more than 1 MiB.
Source read_source(const std::string& path_or_text, const std::string& name);

/// Sets the fields that are not in options.decided. Dtypes and spaces that follow from several
/// fields (`preset`, `cpu_checkpointing`) are not applied yet.
DeepSpeedConfig apply_config(const CheckedConfig& config, const DeepSpeedOptions& options);

}  // namespace zg::zero::deepspeed
