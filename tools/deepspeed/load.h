#pragma once

#include <string>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/zero/deepspeed/check.h"
#include "zerograd/zero/deepspeed/hjson.h"

namespace zg::tools {

/// Reads, checks and applies the --config of `options`, if there is one. Prints on stderr which
/// keys flags override, which have no effect and, with dump_state, all values. The flags of the
/// keys that it applies count as given. A .yaml or .yml file is accelerate's, which may name a
/// DeepSpeed config; a value that starts with { is the config itself. Throws FileError when the
/// file cannot be read, ConfigError, and Unsupported after all other checks passed.
void load_config(TrainOptions& options);

/// The config that load_config() would read, in DeepSpeed's keys. accelerate's file may name a
/// DeepSpeed config, contain its keys, or have neither.
zero::deepspeed::Value deepspeed_config(const ConfigOptions& config);

/// Sets options from the config's keys and defaults where no flag of `options.given` does. Returns
/// the keys that a flag overrides: "optimizer.params.lr (--lr)". Adds to `config` the keys that
/// have no effect beside others.
std::vector<std::string> apply_config(zero::deepspeed::CheckedConfig& config,
                                      TrainOptions& options);

// accelerate's YAML, in accelerate.cpp.

/// Reads YAML as accelerate writes it into the same tree as read_hjson(). ConfigError with file,
/// line and column for invalid YAML, repeated keys, more than 64 levels, more than 1000 keys in an
/// object, anchors, bytes that are not UTF-8, and more than one document.
zero::deepspeed::Value read_yaml(const std::string& source, const std::string& file);

/// Converts the DeepSpeed settings in accelerate's own keys of a checked YAML to a DeepSpeed
/// config. Values keep their positions in the YAML; the batch is "auto".
zero::deepspeed::Value deepspeed_config_of(const zero::deepspeed::Value& yaml);

/// Fills in missing keys of a checked DeepSpeed config as accelerate does: `enabled` of fp16 or
/// bf16 from mixed_precision, unless a flag gives the precision; stage 2 if the settings are in
/// accelerate's own keys. ConfigError where the two configs contradict each other.
void fill_defaults(const zero::deepspeed::CheckedConfig& yaml, const Given& flags,
                   zero::deepspeed::CheckedConfig& deepspeed);

/// Applies num_processes and mixed_precision where no flag sets the value. Call it after
/// DeepSpeed's config is applied; `deepspeed` may be null. Returns the keys that a flag overrides.
/// ConfigError when the number of started processes differs.
std::vector<std::string> apply_accelerate(const zero::deepspeed::CheckedConfig& yaml,
                                          const zero::deepspeed::CheckedConfig* deepspeed,
                                          const Given& flags, TrainOptions& options);

}  // namespace zg::tools
