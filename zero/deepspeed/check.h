#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/zero/deepspeed/hjson.h"
#include "zerograd/zero/deepspeed/schema.h"

namespace zg::zero::deepspeed {

/// One key's value, as its row's type: what the file says, or the default.
struct Setting {
  const Row* row = nullptr;
  Position at;             ///< the key's
  bool given = false;      ///< false: the default
  bool automatic = false;  ///< "auto", for the run to fill
  bool null = false;
  bool disabled = false;  ///< false, {} or a block that is not enabled: it asks for nothing
  bool boolean = false;
  int64_t integer = 0;
  double number = 0.0;
  std::string text;
  std::vector<double> numbers;
};

/// A config that is right: its keys, and the defaults of every section that it has.
struct CheckedConfig {
  std::string file;
  DeepSpeedVersion version = DeepSpeedVersion::v0_19;
  std::map<std::string, Setting> settings;  ///< by section and key, "adam.lr"
  std::vector<std::string> warnings;        ///< unknown keys of a lenient check
  std::vector<std::string> without_effect;  ///< a line each, with its reason
  /// The first thing that is asked for and not done here.
  std::optional<std::string> unsupported;

  /// Null: neither given nor in a section that is.
  const Setting* find(const std::string& section, const std::string& key) const;
  bool is_on(const std::string& section, const std::string& key) const;  ///< a boolean that is true
  /// Each key with its value, "zero_optimization.stage = 2", and " (default)" where it is one.
  std::vector<std::string> state() const;
  std::string place_of(const Setting& setting) const;  ///< "ds.json:3:5: key: "
};

/// Holds a config against the rows. ConfigError for an unknown, misplaced or contradictory key, a
/// wrong type or range, each with its place, what was expected and what to try.
/// `section`: "" for DeepSpeed's top level, or "accelerate".
CheckedConfig check_config(const Value& root, const std::string& file, DeepSpeedVersion version,
                           bool lenient, const std::string& section = "");

/// Keys that are right one by one and wrong together: ConfigError, or noted as unsupported.
void check_contradictions(CheckedConfig& config);

/// Keeps the first.
void note_unsupported(CheckedConfig& config, const std::string& message);

/// The value as the row's type, with pydantic's kindness: "true" and 1 are booleans, 2e8 and "15"
/// whole numbers, 50000000.0 too. ConfigError, beginning with `where`.
Setting coerced(const Row& row, const Value& value, const std::string& where);

/// The row's default. It must have one.
Setting default_of(const Row& row, DeepSpeedVersion version);

/// Whether an `only` row is content with it.
bool is_default(const Setting& setting, DeepSpeedVersion version);

}  // namespace zg::zero::deepspeed
