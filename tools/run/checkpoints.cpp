#include "tools/run/checkpoints.h"

#include <cstdio>
#include <filesystem>
#include <vector>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/text.h"
#include "zerograd/zero/checkpoint/manifest.h"

namespace zg::tools {
namespace {

namespace fs = std::filesystem;

using zero::step_folders;
using zero::StepFolder;

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
    std::fprintf(stderr, "passed over %s: %s\n", folder.path.c_str(), harmless(damage).c_str());
  });
}

Checkpoint checkpoint_to_resume(const std::string& resume, const std::string& save) {
  if (resume != "auto") return usable_checkpoint(resume);
  return step_folders(save).empty() ? nullptr : usable_checkpoint(save);
}

void check_outside(const std::string& file, const char* command) {
  const fs::path path = fs::absolute(file);
  std::error_code ignored;
  if (fs::exists(path.parent_path() / zero::manifest_name, ignored) ||
      (path.filename() == "latest" && !step_folders(path.parent_path()).empty()))
    throw ConfigError(std::string(command) + ": " + file +
                      " is, or would be, a file of a checkpoint; expected a path outside of it; "
                      "try another folder");
}

void check_own_directory(const std::string& save, const Checkpoint& resumed) {
  const std::vector<StepFolder> folders = step_folders(save);
  if (folders.empty()) return;
  const std::string newest = fs::path(folders.front().path).filename().string();
  if (!resumed || !zero::lies_in(resumed->path(), save))
    throw ConfigError("--save: " + save + " holds another run's checkpoints, up to " + newest +
                      "; expected a directory without any; try --resume " + save +
                      " to go on from there, another directory, or remove them");
  const int64_t steps = resumed->manifest().info.steps;
  for (const StepFolder& folder : folders)
    if (folder.steps > steps && verifies(folder.path))
      throw ConfigError("--save: " + save + " has step_" + std::to_string(folder.steps) +
                        ", later than the step_" + std::to_string(steps) +
                        " that this run goes on from, and would replace it; try another directory, "
                        "or --resume " +
                        save + " to go on from the newest");
}

std::shared_ptr<zero::DirectoryLock> lock_directory(const std::string& directory) try {
  auto lock = std::make_shared<zero::DirectoryLock>(directory);
  if (!lock->warning().empty())
    std::fprintf(stderr, "warning: --save: %s\n", lock->warning().c_str());
  return lock;
} catch (const ConfigError& error) {
  throw ConfigError(std::string("--save: ") + error.what());
}

}  // namespace zg::tools
