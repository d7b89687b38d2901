#pragma once

#include <string>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/models/hugging_face/hugging_face.h"

// The flag --from-hf.
namespace zg::tools {

/// Whether a path is a folder with a config.json and without checkpoints.
bool is_hf_folder(const std::string& path);

/// Opens the folder; FileError names the flag.
models::HuggingFaceFolder open_hf_folder(const std::string& path);

/// Fills the model's options from the folder of --from-hf. Two flags may differ from it:
/// --block-size, which may be smaller (the first positions are used) or, with ALiBi, any length,
/// and --dropout. ConfigError for other flags that size the model; Unsupported for several
/// different dropouts. Returns notes for the user, one per line.
std::vector<std::string> adopt_hf(const models::HuggingFaceFolder& folder, TrainOptions& options);

}  // namespace zg::tools
