#include "tools/checkpoint_directory.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/error.h"
#include "tools/text.h"

namespace zg::tools {
namespace {

/// Of the older ones all but the `keep` with the lowest loss, and but what cannot be read.
std::vector<std::string> worse_of(const std::string& directory, int64_t keep) {
  std::vector<zero::StepFolder> folders = zero::step_folders(directory);
  if (!folders.empty()) folders.erase(folders.begin());  // the newest stays: resuming needs it
  std::vector<std::pair<double, std::string>> by_loss;
  for (const zero::StepFolder& folder : folders) {
    try {
      const zero::CheckpointInfo info = zero::read_checkpoint_info(folder.path);
      const double loss = settings_from_json(info.config_json, folder.path).loss;
      // A loss that is no number is worse than any.
      by_loss.emplace_back(std::isnan(loss) ? INFINITY : loss, folder.path);
    } catch (const Error&) {
    }
  }
  std::stable_sort(by_loss.begin(), by_loss.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> worse;
  for (size_t i = static_cast<size_t>(keep); i < by_loss.size(); ++i)
    worse.push_back(by_loss[i].second);
  return worse;
}

/// Nothing goes before the new one was read back. Why something else stays than should; "": all is
/// as it should be.
std::string keep_best(const std::string& directory, const std::string& newest, int64_t keep) {
  try {
    const std::vector<std::string> worse = worse_of(directory, keep);
    if (!worse.empty()) zero::verify_checkpoint(newest);
    for (const std::string& path : worse) zero::remove_checkpoint(path);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(Options options, Report report)
    : options_(std::move(options)), report_(std::move(report)) {}

bool CheckpointDirectory::save(const zero::Engine& engine, const Settings& settings,
                               int64_t micro_batches) {
  finish();
  save_.emplace(options_.path, engine,
                zero::CheckpointInfo{.steps = engine.steps(),
                                     .skipped = engine.skipped(),
                                     .micro_batches = micro_batches,
                                     .config_json = to_json(settings)});
  finish_save();
  return !failed_;
}

bool CheckpointDirectory::finish() {
  finish_save();
  finish_removing();
  return !failed_;
}

void CheckpointDirectory::finish_save() {
  if (!save_) return;
  const zero::CheckpointSave::Result result = save_->finish();
  failed_ = result.failed_rank >= 0;
  if (report_) report_(save_->path(), result);
  if (save_->is_committed()) start_removing(save_->path());
  save_.reset();
}

void CheckpointDirectory::start_removing(const std::string& newest) {
  if (options_.keep < 0) return;
  try {
    removing_ = std::async(std::launch::async, keep_best, options_.path, newest, options_.keep);
  } catch (const std::system_error&) {  // no thread is left
    removing_ = std::async(std::launch::deferred, keep_best, options_.path, newest, options_.keep);
  }
}

void CheckpointDirectory::finish_removing() {
  if (!removing_.valid()) return;
  const std::string reason = removing_.get();
  if (!reason.empty())
    std::fprintf(stderr, "warning: --save-top-k: %s: older checkpoints stay: %s\n",
                 options_.path.c_str(), harmless(reason).c_str());
}

}  // namespace zg::tools
