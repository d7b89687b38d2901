#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/zero/checkpoint/checkpoint_directory.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"

namespace zg::tools {

using Checkpoint = std::shared_ptr<zero::CheckpointReader>;

/// Opens `path` if it is a step_N folder, else the newest step_N in it that verifies. Prints those
/// that do not verify on stderr. FileError when there is none.
Checkpoint usable_checkpoint(const std::string& path);

/// The step_N that --resume names. For "auto": the newest one in `save`, or null if there is none.
Checkpoint checkpoint_to_resume(const std::string& resume, const std::string& save);

/// ConfigError if writing `file` would replace a file of a checkpoint.
void check_outside(const std::string& file, const char* command);

/// Checks that two runs do not share a directory: "the newest" is decided by step number, so each
/// would take the other's checkpoints for its own. ConfigError when `save` contains checkpoints and
/// `resumed` (null: a fresh start) is not one of them, or is not the newest that verifies, because
/// the run would replace the later ones.
void check_own_directory(const std::string& save, const Checkpoint& resumed);

/// Locks the directory of --save. ConfigError naming the flag when another run holds the lock.
/// Prints a warning on stderr if the directory cannot be locked.
std::shared_ptr<zero::DirectoryLock> lock_directory(const std::string& directory);

// The flag --from-hf.

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
