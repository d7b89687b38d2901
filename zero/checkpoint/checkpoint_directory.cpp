#include "zerograd/zero/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::zero {
namespace {

/// The checkpoints to remove: all except the newest (needed to resume), the `keep` checkpoints with
/// the lowest loss, and those that cannot be read.
std::vector<std::string> worse_of(const CheckpointDirectory::Options& options, int64_t newest) {
  std::vector<std::pair<double, std::string>> by_loss;
  for (const StepFolder& folder : step_folders(options.path)) {
    if (folder.steps == newest) continue;
    try {
      const double loss = options.loss_of(read_checkpoint_info(folder.path), folder.path);
      by_loss.emplace_back(std::isnan(loss) ? INFINITY : loss, folder.path);
    } catch (const Error&) {
    }
  }
  std::ranges::stable_sort(by_loss, [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> worse;
  for (size_t i = static_cast<size_t>(options.keep); i < by_loss.size(); ++i)
    worse.push_back(by_loss[i].second);
  return worse;
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(Options options, Report report, Warn warn)
    : options_(std::move(options)), report_(std::move(report)), warn_(std::move(warn)) {
  if (options_.keep >= 0 && !options_.loss_of)
    raise<ConfigError>(
        "checkpoints: expected loss_of, by which the {} best are found, got none; try keep = -1",
        options_.keep);
}

bool CheckpointDirectory::save(const Engine& engine, const CheckpointInfo& info) {
  finish();
  save_.emplace(options_.path, engine, info, options_.keep >= 0);
  noted_ = failed_ = false;
  if (!options_.in_background || save_->failed_at_once()) finish_save();
  return !failed_;
}

void CheckpointDirectory::poll() {
  if (save_ && !noted_ && save_->commit_if_written()) note({});
}

bool CheckpointDirectory::finish() {
  finish_save();
  return !failed_;
}

void CheckpointDirectory::finish_save() {
  if (!save_) return;
  const CheckpointSave::Result result = save_->finish();
  failed_ = result.failed_rank >= 0;
  if (!noted_) note(result);
  save_.reset();
}

void CheckpointDirectory::note(const CheckpointSave::Result& result) {
  noted_ = true;
  if (report_) report_(save_->path(), result);
  if (options_.keep >= 0 && save_->is_committed()) remove_worse(save_->path());
}

// Call it after each rank has read back and verified its own shard of the new checkpoint. The rest
// of that checkpoint is verified here.
void CheckpointDirectory::remove_worse(const std::string& newest) const {
  try {
    const int64_t steps = read_checkpoint_info(newest).steps;
    for (const std::string& path : worse_of(options_, steps)) remove_checkpoint(path);
  } catch (const Error& error) {
    if (warn_) warn_(fmt::format("{}: older checkpoints stay: {}", options_.path, error.what()));
  }
}

DirectoryLock::DirectoryLock(const std::string& directory)
    : descriptor_(
          retried([&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); })) {
  const auto lock = [&] { return ::flock(descriptor_, LOCK_EX | LOCK_NB); };
  if (descriptor_ >= 0 && retried(lock) == 0) return;
  if (errno != EWOULDBLOCK) {
    warning_ = fmt::format("{} cannot be locked ({}); nothing keeps another run from writing there",
                           directory, std::strerror(errno));
    return;
  }
  ::close(descriptor_);
  raise<ConfigError>(
      "another run is writing to {}; expected a directory of its own for each run; try "
      "another one, or wait for that run to end",
      directory);
}

DirectoryLock::~DirectoryLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace zg::zero
