#pragma once

#include "tools/config/check.h"
#include "tools/options.h"

namespace zg::tools {

/// What a checked YAML of accelerate says of DeepSpeed in its own keys, as DeepSpeed's config with
/// the places of the YAML; its batch is "auto".
Value deepspeed_config_of(const Value& yaml);

/// Fills what a checked config of DeepSpeed leaves open, as accelerate does: the `enabled` of fp16
/// or bf16 from mixed_precision, unless a flag gives the precision, and in accelerate's own keys
/// stage 2. ConfigError where the two configs contradict each other.
void fill_defaults(const CheckedConfig& yaml, const Given& flags, CheckedConfig& deepspeed);

/// Lets num_processes and mixed_precision set what no flag sets, once DeepSpeed's config is
/// applied; `deepspeed` may be null. Returns the keys that a flag overrides. ConfigError where
/// other processes were started.
std::vector<std::string> apply_accelerate(const CheckedConfig& yaml, const CheckedConfig* deepspeed,
                                          const Given& flags, TrainOptions& options);

}  // namespace zg::tools
