#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/zero/checkpoint/checkpoint_directory.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"

namespace zg::tools {

using Checkpoint = std::shared_ptr<zero::CheckpointReader>;

/// Opens `path` if it is a step_N folder, else the newest step_N in it that verifies. Names on
/// stderr each step_N that does not verify. Throws FileError when none verifies.
Checkpoint usable_checkpoint(const std::string& path);

/// The step_N that --resume names. For "auto": the newest one in `save`, or null if there is none.
Checkpoint checkpoint_to_resume(const std::string& resume, const std::string& save);
/// With --resume auto, --from-hf, --init and --init-adapter are for a run without a checkpoint yet:
/// clears them, or else the resume.
void resolve_auto_resume(TrainOptions& options);

/// Throws ConfigError if `file` is inside a checkpoint, so that writing it would damage the
/// checkpoint.
void check_not_in_checkpoint(const std::string& file, const char* command);

/// Checks that two runs do not share a directory. The newest checkpoint is the one with the highest
/// step number, so each run could resume from the checkpoint of the other. Throws ConfigError when
/// `save` contains checkpoints and `resumed` (null: a fresh start) is not one of them, or is not
/// the newest that verifies, because the run would replace the later ones.
void check_own_directory(const std::string& save, const Checkpoint& resumed);

/// Locks the directory of --save. Throws ConfigError naming the flag when another run holds the
/// lock. Prints a warning on stderr if the directory cannot be locked.
std::shared_ptr<zero::DirectoryLock> lock_directory(const std::string& directory);

// The flag --from-hf.

/// Whether a path is a folder with a config.json and without checkpoints.
bool is_hf_folder(const std::string& path);

/// Whether it is one of an encoder-decoder. False if config.json cannot be read.
bool is_seq2seq_folder(const std::string& path);

/// Opens the folder of a decoder. Throws FileError; the message names the flag.
models::HuggingFaceFolder open_hf_folder(const std::string& path);

}  // namespace zg::tools
