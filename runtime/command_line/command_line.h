#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/dtype.h"

namespace zg {

/// One flag: how it is spelled, what help says, and what its value does.
struct Flag {
  std::vector<std::string>
      names;          ///< "--batch-size", ...; the first is its own, the others aliases
  std::string value;  ///< stands for the value in help, "N"; empty for a switch
  std::string help;   ///< empty: a flag that help does not list
  /// Called once with the spelling that errors should name and the value; "true" for a bare switch.
  std::function<void(const std::string& name, const std::string& value)> set;
  /// Words that the value may come in, joined by commas: "16 16 5000000" is 16,16,5000000 too.
  int words = 1;
  /// Names that stand for the flag with a value: {"--bf16", "bf16"} of --precision.
  std::vector<std::pair<std::string, std::string>> with_value;
};

struct FlagGroup {
  std::string title;
  std::vector<Flag> flags;
};

/// A subcommand's arguments. Positionals come in the order of `positionals`, each required.
struct CommandLine {
  std::string usage;    ///< "zerograd eval CHECKPOINT [flags]"
  std::string summary;  ///< one or more lines
  std::vector<Flag> positionals;
  std::optional<Flag> rest;  ///< takes the words that are left; absent: they are errors
  std::vector<FlagGroup> groups;
  std::string notes;  ///< printed below the flags
};

/// First names of the flags that were given.
using Given = std::set<std::string>;

/// Reads `arguments` (without the program's and the subcommand's name) and calls what was given, in
/// the order of the table. `-` and `_` are equal in names. ConfigError for an unknown flag (with
/// the nearest known one), a missing value or a stray word; of a flag given twice the last counts.
/// Returns false after printing help to stdout.
bool parse(const CommandLine& line, const std::vector<std::string>& arguments, Given& given);

/// ConfigError where both --device and --use-hpu were given.
void check_device(const Given& given);

/// Unsupported where such devices do not compute in the dtype: "`what`: ... f16 ...; try ...".
void require_dtype(Device::Type type, DType dtype, const std::string& what);

/// Unsupported, with the reason, where this machine has no such device.
void require_device(Device::Type type);
/// That too where what computes is no such device: its times are no figures.
void require_figures(Device::Type type);

}  // namespace zg
