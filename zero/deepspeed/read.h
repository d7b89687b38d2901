#pragma once

#include <string>

#include "zerograd/zero/deepspeed/check.h"
#include "zerograd/zero/deepspeed/deepspeed.h"

// The steps of read_deepspeed_config(), for programs that do something in between.
namespace zg::zero::deepspeed {

struct Source {
  std::string file;  ///< how errors name it: the path, or `name` of a text without a file
  std::string text;
};

/// A file, a config itself, or one in base64, as DeepSpeed takes them. FileError, beginning with
/// `name`; ConfigError for a file of more than 1 MiB.
Source read_source(const std::string& path_or_text, const std::string& name);

/// Sets the fields that options.decided leaves to the config. Dtypes and places that follow from
/// several fields are not settled: `preset`, `cpu_checkpointing`.
DeepSpeedConfig apply_config(const CheckedConfig& config, const DeepSpeedOptions& options);

}  // namespace zg::zero::deepspeed
