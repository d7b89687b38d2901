#pragma once

#include <string>

#include "zerograd/zero/deepspeed/check.h"
#include "zerograd/zero/deepspeed/deepspeed.h"

// The steps of read_deepspeed_config(), for programs that need only one of them.
namespace zg::zero::deepspeed {

struct Source {
  std::string file;  ///< its name in errors: the path, or `name` for a text without a file
  std::string text;
};

/// Reads a config from a file, from its text, or from base64, as DeepSpeed does. Throws FileError,
/// beginning with `name`; ConfigError for a file of more than 1 MiB.
Source read_source(const std::string& path_or_text, const std::string& name);

/// Sets the fields that are not in options.decided. Dtypes and spaces that follow from several
/// fields (`preset`, `cpu_checkpointing`) are not applied yet.
DeepSpeedConfig apply_config(const CheckedConfig& config, const DeepSpeedOptions& options);

}  // namespace zg::zero::deepspeed
