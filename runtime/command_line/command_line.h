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

/// One flag: its names, its help, and the function that takes its value.
struct Flag {
  std::vector<std::string>
      names;          ///< "--batch-size", ...; the first is its own, the others aliases
  std::string value;  ///< how help shows the value, "N"; empty for a switch
  std::string help;   ///< empty: a flag that help does not list
  /// Called once with the spelling that errors should name and the value; "true" for a bare switch.
  std::function<void(const std::string& name, const std::string& value)> set;
  /// The value may be given as several words, which are joined by commas: "16 16 5000000" is
  /// 16,16,5000000.
  int words = 1;
  /// Other flags that set this one to a value: {"--bf16", "bf16"} for --precision.
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
  std::optional<Flag> rest;  ///< takes the remaining words; absent: they are errors
  std::vector<FlagGroup> groups;
  std::string notes;  ///< printed below the flags
};

/// First names of the flags that were given.
using Given = std::set<std::string>;

/// Reads `arguments` (without the names of program and subcommand) and calls the functions of the
/// given flags, in the order of the table. `-` and `_` are equal in names. ConfigError for an
/// unknown flag (with the nearest known one), a missing value or a stray word; of a flag given
/// twice the last counts. Returns false after printing help to stdout.
bool parse(const CommandLine& line, const std::vector<std::string>& arguments, Given& given);

/// ConfigError where both --device and --use-hpu were given.
void check_device(const Given& given);

/// Throws Unsupported if such devices do not compute in the dtype: "`what`: ... f16 ...; try ...".
void require_dtype(Device::Type type, DType dtype, const std::string& what);

/// Throws Unsupported, with the reason, if this machine has no such device.
void require_device(Device::Type type);
/// The same for a test driver in place of a device, because its times mean nothing.
void require_figures(Device::Type type);

}  // namespace zg
