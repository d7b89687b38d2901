#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/command.h"

// Tests keys of a config by a table. Each key is absent, has a value, or is "auto", each without
// and with flags that override it. The table has the values that a run of the command then uses.
//
//   section.key value | absent | with the value | with "auto"
//     with what the config has besides, a merge patch
//     given flags of all runs
//     flags that override | with the value | absent | with "auto" | what is listed as overridden
//
// An expectation is "rate=0.25 beta1=0.5": what is seen. "less", "more" and "same" there compare
// with the run without the key, and "same" alone says that nothing differs from it. Or it is
// "status 2: words", an error with words that it contains; "refused" is an error about 'auto'. In
// the lines of flags "." or a column that is missing stands for what the line says so far, or for
// the error without the flags, and for the key and the first flag as what is listed; "-" for
// nothing of it.
namespace zg::testing {

/// The values that a run of the command uses, by name: numbers as printf's %g writes them.
using Seen = std::map<std::string, std::string>;

/// Runs the command as a user does, with a config, on a model of two layers of width 16. The word
/// DRIVE in configs and flags becomes a folder that exists. A config with a distributed_type is
/// written as accelerate's YAML.
class ConfigRuns {
 public:
  struct Run {
    Outcome outcome;
    Seen seen;  ///< empty where the command failed
  };

  /// train for four steps. Seen are the settings in the checkpoint's manifest ("rate", "stage") and
  /// from its lines "prints" (the steps of DeepSpeed's lines, "memory" for the table, "settings"
  /// for those of the config, each with a ;), "drive" (its folder) and "requests" (to it, with _
  /// for spaces).
  Run train(const nlohmann::json& config, const std::string& flags);
  /// plan for three steps on two ranks. Seen are rank 0's calls by collective, bytes by space and
  /// purpose ("host_optimizer"; the most at the end of a phase), "peak", "forward_peak" (of the
  /// third step) and "drive_read".
  Run plan(const nlohmann::json& config, const std::string& flags);

 private:
  Outcome run(const std::string& command, const nlohmann::json& config, const std::string& flags);

  TemporaryFolder folder_, drive_;
};

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
/// `sees_all`: what it has and the expectation does not name must be the same.
std::string surprise(const std::string& expected, const ConfigRuns::Run& run, const Seen& base,
                     bool sees_all);

enum class Command { train, plan };
/// Runs the command for every line of the table.
void check_matrix(const char* table, Command command);

}  // namespace zg::testing
