#pragma once

#include "tools/options.h"
#include "zerograd/zero/deepspeed/check.h"

namespace zg::tools {

/// The DeepSpeed settings that a checked YAML of accelerate has in its own keys, as a config with
/// the places of the YAML; its batch is "auto".
zero::deepspeed::Value deepspeed_config_of(const zero::deepspeed::Value& yaml);

/// Fills what a checked config of DeepSpeed leaves open, as accelerate does: the `enabled` of fp16
/// or bf16 from mixed_precision, unless a flag gives the precision, and in accelerate's own keys
/// stage 2. ConfigError where the two configs contradict each other.
void fill_defaults(const zero::deepspeed::CheckedConfig& yaml, const Given& flags,
                   zero::deepspeed::CheckedConfig& deepspeed);

/// Lets num_processes and mixed_precision set what no flag sets, once DeepSpeed's config is
/// applied; `deepspeed` may be null. Returns the keys that a flag overrides. ConfigError where
/// other processes were started.
std::vector<std::string> apply_accelerate(const zero::deepspeed::CheckedConfig& yaml,
                                          const zero::deepspeed::CheckedConfig* deepspeed,
                                          const Given& flags, TrainOptions& options);

}  // namespace zg::tools
