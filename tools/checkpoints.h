#pragma once

#include <memory>
#include <string>

#include "zerograd/zero/checkpoint_directory.h"
#include "zerograd/zero/checkpoint_file.h"
#include "zerograd/zero/checkpoint_reader.h"

namespace zg::tools {

using Checkpoint = std::shared_ptr<zero::CheckpointReader>;

/// `path` when it is a step_N, else the newest of its step_N that verifies; stderr names those that
/// do not. FileError when there is none.
Checkpoint usable_checkpoint(const std::string& path);

/// The step_N that --resume names; for "auto", of `save`, or null when it holds none at all.
Checkpoint checkpoint_to_resume(const std::string& resume, const std::string& save);

/// ConfigError of a file that would take the place of one of a checkpoint.
void check_outside(const std::string& file, const char* command);

/// Two runs in one directory would take each other's checkpoints for their own, as "the newest"
/// goes by step number: ConfigError when `save` has any and `resumed` (null: a fresh start) is not
/// one of them, or is not the newest that verifies: those after it would be replaced.
void check_own_directory(const std::string& save, const Checkpoint& resumed);

/// Locks the directory of --save. ConfigError naming the flag when another run holds it; where it
/// cannot be locked, a warning on stderr.
std::shared_ptr<zero::DirectoryLock> lock_directory(const std::string& directory);

}  // namespace zg::tools
