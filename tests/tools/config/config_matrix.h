#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/command.h"

// Tests keys of a config by a table. Each key is absent, has a value, or is "auto", each without
// and with flags that override it. The table has the settings that a run of them resolves to.
//
//   section.key value | absent | with the value | with "auto"
//     with what the config has besides, a merge patch
//     given flags of all runs
//     flags that override | with the value | absent | with "auto" | what is listed as overridden
//
// An expectation is "rate=0.25 beta1=0.5": what is seen; what it does not name is the same as
// without the key. "same" there compares with the run without the key, and "same" alone says that
// nothing differs from it. Or it is "status 2: words", an error with words that it contains;
// "refused" is an error about 'auto'. In the lines of flags "." or a column that is missing stands
// for what the line says so far, or for the error without the flags, and for the key and the first
// flag as what is listed; "-" for nothing of it.
namespace zg::testing {

/// The settings of a run, by name: numbers as printf's %g writes them.
using Seen = std::map<std::string, std::string>;

struct Configured {
  Outcome outcome;  ///< what `train` prints about its config
  Seen seen;        ///< empty where the config is refused
};
/// The run of `train` with these flags, on a model of two layers of width 16: nothing is trained.
/// Seen are the stored settings of the run ("rate", "stage"), those of its buckets and output by
/// their flags
/// ("reduce_bucket_size"), "steps_per_print", "dump_state", and with states on a disk "drive" and
/// "requests".
Configured configured(const std::string& flags);
/// The same with a config in a file. One with a distributed_type is accelerate's YAML.
Configured configured(const nlohmann::json& config, const std::string& flags);

/// Flags that override a key, with what is seen where the config has a value, nothing and "auto".
struct Override {
  std::string flags, with_value, absent, automatic, listed;
};

/// The expectation of a key.
struct Key {
  std::string section, key, value, absent, with_value, automatic, given;
  nlohmann::json around = nlohmann::json::object();
  std::vector<Override> overrides;

  std::string path() const;  ///< the key's name in errors
};

std::vector<Key> parsed(std::string table);

/// The first difference from what is expected, in words; "": none. `base`: the run without the key.
std::string surprise(const std::string& expected, const Configured& run, const Seen& base);

/// Checks every line of the table.
void check_matrix(const char* table);

}  // namespace zg::testing
