#pragma once

#include "tools/options.h"
#include "zerograd/zero/deepspeed/check.h"

namespace zg::tools {

/// Reads, checks and applies the --config of `options`, if it has one, and tells stderr what it
/// overrides, what has no effect, and with dump_state what it holds. Keys that set what a flag does
/// count as given. A .yaml or .yml is accelerate's,
/// which may name one of DeepSpeed's; a value that starts with { is the config itself. FileError
/// when the file cannot be read, ConfigError, and Unsupported once all of it is known to be right.
void load_config(TrainOptions& options);

/// A --config that load_config() takes, in DeepSpeed's keys: an accelerate's file may name
/// or hold them, or have none.
zero::deepspeed::Value deepspeed_config(const ConfigOptions& config);

/// Lets the config's keys and defaults set what no flag of `options.given` sets. Returns the keys
/// that a flag overrides: "optimizer.params.lr (--lr)".
std::vector<std::string> apply_config(const zero::deepspeed::CheckedConfig& config,
                                      TrainOptions& options);

}  // namespace zg::tools
