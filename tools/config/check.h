#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/config/schema.h"
#include "tools/config/tree.h"

namespace zg::tools {

/// One key's value, as its row's type: what the file says, or the default.
struct Setting {
  const Row* row = nullptr;
  Position at;             ///< of the key
  bool given = false;      ///< false: the default
  bool automatic = false;  ///< "auto", for the run to fill
  bool null = false;
  bool disabled = false;  ///< of any type: it asks for nothing
  bool boolean = false;
  int64_t integer = 0;
  double number = 0.0;
  std::string text;
  std::vector<double> numbers;
};

/// A config that is right: its keys, and the defaults of every section that it has.
struct CheckedConfig {
  std::string file;
  Compat compat = Compat::v0_19;
  std::map<std::string, Setting> settings;  ///< by section and key, "adam.lr"
  std::vector<std::string> warnings;        ///< unknown keys of a lenient check
  std::vector<std::string> without_effect;  ///< a line each, with its reason
  /// The first thing that is asked for and not done here.
  std::optional<std::string> unsupported;

  /// Null: neither given nor in a section that is.
  const Setting* find(const std::string& section, const std::string& key) const;
  bool is_on(const std::string& section, const std::string& key) const;  ///< a boolean that is true
  std::string place_of(const Setting& setting) const;                    ///< "ds.json:3:5: key: "
};

/// Holds a config against the rows. ConfigError for an unknown, misplaced or contradictory key, a
/// wrong type or range, each with its place, what was expected and what to try.
/// `section`: of DeepSpeed's top level, or "accelerate".
CheckedConfig check_config(const Value& root, const std::string& file, Compat compat, bool lenient,
                           const std::string& section = "");

}  // namespace zg::tools
