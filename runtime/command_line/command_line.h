#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/dtype.h"

namespace zg {

/// How a command uses a path that a flag names.
enum class PathUse : uint8_t {
  none,     ///< the value is not a path
  reads,    ///< a file, or a folder with all that is in it
  resumes,  ///< a checkpoint, which may be in a folder that the command `adds` to
  watches,  ///< a file whose existence is tested, or a folder for files without names
  writes,   ///< a file or a folder, whose old contents may be replaced
  adds,     ///< a folder that gets checkpoints or event files under new names
};
const char* name_of(PathUse use);

struct NamedPath {
  std::string flag;  ///< as errors name it: "--metrics"
  PathUse use;
  std::string path;  ///< empty: not given
};
/// Returns the paths, each with this use and without a flag.
std::vector<NamedPath> used(PathUse use, const std::vector<std::string>& paths);

/// Throws ConfigError, which names both flags, if an output is, contains or lies in an input, or if
/// two outputs are the same path. Files and folders are compared by inode, so that links, "..", and
/// the case of letters do not hide them. A path that does not exist yet is compared by its name
/// below the nearest existing parent. Devices and pipes are never refused.
void check_paths(const std::vector<NamedPath>& paths);

/// One flag: its names, its help, and the function that takes its value.
struct Flag {
  /// "--batch-size", ...; the first one is the flag's name, the others are aliases. Empty for
  /// positionals and `rest`.
  std::vector<std::string> names;
  std::string value;  ///< how help shows the value, "N"; empty for a switch
  std::string help;   ///< empty: a flag that help does not list
  /// Called with the flag's first name, which errors should name, and the value: "true" for a bare
  /// switch. A positional and `rest` have no name; for them the name is `value`, as help shows it.
  /// parse() may call the function again to choose an error message.
  std::function<void(const std::string& name, const std::string& value)> set;
  /// The value may be given as up to this many words, which are joined by commas: "16 16 5000000"
  /// is 16,16,5000000.
  int max_words = 1;
  /// Other flags that set this one to a value: {"--bf16", "bf16"} for --precision.
  std::vector<std::pair<std::string, std::string>> with_value;
  /// How the command uses the path in the value.
  PathUse use = PathUse::none;
  /// Returns the paths that the current value of the flag's variable stands for, also if it is the
  /// default. One value may stand for several: a PREFIX stands for two files. NamedPath::flag may
  /// be empty. Required unless `use` is none.
  std::function<std::vector<NamedPath>()> paths = nullptr;
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

/// The paths that the flags name now. A command calls check_paths(paths_of(groups)) again when a
/// config or a checkpoint has changed them.
std::vector<NamedPath> paths_of(const std::vector<FlagGroup>& groups);

/// The flags that were given, each by its first name.
using Given = std::set<std::string>;

/// Reads `arguments` (without the names of program and subcommand) and calls the functions of the
/// given flags, in the order of `line`, not of the arguments. `-` and `_` are equal in names.
/// Throws ConfigError for an unknown flag (with the nearest known one), a missing value or a stray
/// word, or for outputs that are inputs (check_paths()). If a flag is given twice, the last value
/// is used. Returns false if it has printed to stdout: the help, or, if --list-flags is the only
/// argument, a line for each flag with its name, value and PathUse, and "text" if it takes any
/// text, separated by tabs.
bool parse(const CommandLine& line, const std::vector<std::string>& arguments, Given& given);

/// Throws ConfigError if both --device and --use-hpu were given.
void check_device(const Given& given);

/// Throws Unsupported if devices of this type have no kernels for the dtype. The message begins
/// with `what`.
void require_dtype(Device::Type type, DType dtype, const std::string& what);

/// Throws Unsupported, with the reason, if this machine has no such device.
void require_device(Device::Type type);
/// Throws Unsupported if a test driver emulates the device, because times measured on it mean
/// nothing.
void refuse_emulator(Device::Type type);

}  // namespace zg
