#include "tools/checkpoint_directory.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "runtime/error.h"
#include "tools/text.h"

namespace zg::tools {
namespace {

/// Of all but the newest, which resuming needs, all but the `keep` with the lowest loss, and but
/// what cannot be read.
std::vector<std::string> worse_of(const std::string& directory, int64_t newest, int64_t keep) {
  std::vector<std::pair<double, std::string>> by_loss;
  for (const zero::StepFolder& folder : zero::step_folders(directory)) {
    if (folder.steps == newest) continue;
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

}  // namespace

CheckpointDirectory::CheckpointDirectory(Options options, Report report)
    : options_(std::move(options)), report_(std::move(report)) {}

bool CheckpointDirectory::save(const zero::Engine& engine, const Settings& settings,
                               int64_t micro_batches) {
  finish();
  zero::CheckpointInfo info = checkpoint_info(settings);
  info.steps = engine.steps();
  info.skipped = engine.skipped();
  info.micro_batches = micro_batches;
  save_.emplace(options_.path, engine, info, options_.keep >= 0);
  noted_ = failed_ = false;
  if (!options_.behind || save_->failed_at_once()) finish_save();
  return !failed_;
}

void CheckpointDirectory::look() {
  if (save_ && !noted_ && save_->commit_if_written()) note({});
}

bool CheckpointDirectory::finish() {
  finish_save();
  return !failed_;
}

void CheckpointDirectory::finish_save() {
  if (!save_) return;
  const zero::CheckpointSave::Result result = save_->finish();
  failed_ = result.failed_rank >= 0;
  if (!noted_) note(result);
  save_.reset();
}

void CheckpointDirectory::note(const zero::CheckpointSave::Result& result) {
  noted_ = true;
  if (report_) report_(save_->path(), result);
  if (options_.keep >= 0 && save_->is_committed()) remove_worse(save_->path());
}

// Nothing goes before the new one was read back: its shards by those who wrote them, the rest here.
void CheckpointDirectory::remove_worse(const std::string& newest) const {
  try {
    const int64_t steps = zero::read_checkpoint_info(newest).steps;
    for (const std::string& path : worse_of(options_.path, steps, options_.keep))
      zero::remove_checkpoint(path);
  } catch (const Error& error) {
    std::fprintf(stderr, "warning: --save-top-k: %s: older checkpoints stay: %s\n",
                 options_.path.c_str(), harmless(error.what()).c_str());
  }
}

}  // namespace zg::tools
