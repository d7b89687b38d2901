#pragma once

#include "tools/config/check.h"
#include "tools/options.h"

namespace zg::tools {

/// What a checked YAML of accelerate says of DeepSpeed in its own keys, as DeepSpeed's config with
/// the places of the YAML; its batch is "auto".
Value deepspeed_config_of(const Value& yaml);

/// Lets num_processes and mixed_precision set what no flag sets, once DeepSpeed's config is
/// applied; `deepspeed` may be null. Returns the keys that a flag overrides. ConfigError where the
/// two configs contradict each other.
std::vector<std::string> apply_accelerate(const CheckedConfig& yaml, const CheckedConfig* deepspeed,
                                          const Given& flags, TrainOptions& options);

}  // namespace zg::tools
