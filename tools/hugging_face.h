#pragma once

#include <string>
#include <vector>

#include "tools/options.h"
#include "zerograd/models/hugging_face.h"

// The flag --from-hf.
namespace zg::tools {

/// Whether a path is a folder with a config.json and without checkpoints.
bool is_hf_folder(const std::string& path);

/// FileError that names the flag.
models::HuggingFaceFolder open_hf_folder(const std::string& path);

/// Fills the model's options from the folder of --from-hf: all of its model but --block-size, which
/// may be smaller (the first positions are taken) or, with ALiBi, any, and --dropout. ConfigError
/// for flags that size it otherwise; Unsupported for several dropouts. Returns what a user should
/// know, a line each.
std::vector<std::string> adopt_hf(const models::HuggingFaceFolder& folder, TrainOptions& options);

}  // namespace zg::tools
