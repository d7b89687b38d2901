#include "tools/run/inputs.h"

#include <cstdio>
#include <filesystem>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_folder.h"

namespace zg::tools {

namespace fs = std::filesystem;
using zero::step_folders;
using zero::StepFolder;
namespace {

bool verifies(const std::string& step_folder) {
  try {
    zero::verify_checkpoint(step_folder);
    return true;
  } catch (const FileError&) {
    return false;
  }
}

}  // namespace

Checkpoint usable_checkpoint(const std::string& path) {
  return zero::choose_checkpoint(path, [](const StepFolder& folder, const std::string& damage) {
    print_line(stderr, "passed over {}: {}", folder.path, damage);
  });
}

Checkpoint checkpoint_to_resume(const std::string& resume, const std::string& save) {
  if (resume != "auto") return usable_checkpoint(resume);
  return step_folders(save).empty() ? nullptr : usable_checkpoint(save);
}

void resolve_auto_resume(TrainOptions& options) {
  const bool begins_with_weights = !options.from_hf.empty() || !options.initial_weights.empty() ||
                                   !options.initial_adapter.empty();
  if (options.resume != "auto" || !begins_with_weights) return;
  if (!checkpoint_to_resume("auto", options.save)) return options.resume.clear();
  options.from_hf.clear();
  options.initial_weights.clear();
  options.initial_adapter.clear();
}

void check_not_in_checkpoint(const std::string& file, const char* command) {
  const fs::path path = fs::absolute(file);
  std::error_code ignored;
  if (fs::exists(path.parent_path() / zero::manifest_name, ignored) ||
      (path.filename() == "latest" && !step_folders(path.parent_path()).empty()))
    raise<ConfigError>(
        "{}: {} is, or would be, a file of a checkpoint; expected a path outside of it; try "
        "another folder",
        command, file);
}

void check_own_directory(const std::string& save, const Checkpoint& resumed) {
  const std::vector<StepFolder> folders = step_folders(save);
  if (folders.empty()) return;
  const std::string newest = fs::path(folders.front().path).filename().string();
  if (!resumed || !zero::lies_in(resumed->path(), save))
    raise<ConfigError>(
        "--save: {} holds another run's checkpoints, up to {}; expected a directory without any; "
        "try --resume {} to go on from there, another directory, or remove them",
        save, newest, save);
  const int64_t steps = resumed->manifest().info.steps;
  for (const StepFolder& folder : folders)
    if (folder.steps > steps && verifies(folder.path))
      raise<ConfigError>(
          "--save: {} has step_{}, later than the step_{} that this run goes on from, and would "
          "replace it; try another directory, or --resume {} to go on from the newest",
          save, folder.steps, steps, save);
}

std::shared_ptr<zero::DirectoryLock> lock_directory(const std::string& directory) try {
  auto lock = std::make_shared<zero::DirectoryLock>(directory);
  if (!lock->warning().empty()) print_line(stderr, "warning: --save: {}", lock->warning());
  return lock;
} catch (const ConfigError& error) {
  raise<ConfigError>("--save: {}", error.what());
}

namespace {

bool has_checkpoints(const std::string& directory) {
  return path_exists(directory + "/" + zero::manifest_name) ||
         (is_directory(directory) && !zero::step_folders(directory).empty());
}

}  // namespace

bool is_hf_folder(const std::string& path) {
  return path_exists(path + "/config.json") && !has_checkpoints(path);
}

bool is_seq2seq_folder(const std::string& path) {
  if (!is_hf_folder(path)) return false;
  constexpr int64_t max_bytes = int64_t{1} << 24;
  const std::string config = path + "/config.json";
  try {
    return models::is_hf_seq2seq(read_text(config, max_bytes), config);
  } catch (const FileError&) {
    return false;
  }
}

models::HuggingFaceFolder open_hf_folder(const std::string& path) {
  if (has_checkpoints(path))
    raise<FileError>(
        "--from-hf: {} has checkpoints; expected a folder as Hugging Face's libraries write one; "
        "try --init or --resume",
        path);
  if (!is_hf_folder(path)) try {
      return models::HuggingFaceFolder(path);
    } catch (const FileError& error) {
      raise<FileError>("--from-hf: {}", error.what());
    }
  return models::HuggingFaceFolder(path);
}

}  // namespace zg::tools
