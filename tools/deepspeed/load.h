#pragma once

#include "tools/options/options.h"
#include "zerograd/zero/deepspeed/check.h"

namespace zg::tools {

/// Reads, checks and applies the --config of `options`, if there is one. Prints on stderr which
/// keys flags override, which have no effect and, with dump_state, all values. Keys that set the
/// same value as a flag count as given. A .yaml or .yml file is accelerate's, which may name a
/// DeepSpeed config; a value that starts with { is the config itself. FileError when the file
/// cannot be read, ConfigError, and Unsupported after all other checks passed.
void load_config(TrainOptions& options);

/// The config that load_config() would read, in DeepSpeed's keys. accelerate's file may name a
/// DeepSpeed config, contain its keys, or have neither.
zero::deepspeed::Value deepspeed_config(const ConfigOptions& config);

/// Sets options from the config's keys and defaults where no flag of `options.given` does. Returns
/// the keys that a flag overrides: "optimizer.params.lr (--lr)".
std::vector<std::string> apply_config(const zero::deepspeed::CheckedConfig& config,
                                      TrainOptions& options);

}  // namespace zg::tools
