#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tools/settings.h"
#include "zero/checkpoint_save.h"
#include "zero/engine.h"

namespace zg::tools {

/// Where a run writes its checkpoints and which of them it keeps. A save that fails ends nothing.
/// Every call is collective. Of a run on meta devices the memory and the exchanges, and no file.
class CheckpointDirectory {
 public:
  struct Options {
    std::string path;
    int64_t keep = -1;    ///< -1: all; otherwise that many with the lowest loss, and the newest
    bool behind = false;  ///< files are written while the run goes on
  };
  /// What became of step_N. One that is saved is reported by rank 0 first.
  using Report =
      std::function<void(const std::string& step_n, const zero::CheckpointSave::Result& result)>;

  CheckpointDirectory(Options options, Report report);

  /// Finishes the one before. False: this one has failed already. One that is written behind is
  /// finished by the next call, of finish() too.
  bool save(const zero::Engine& engine, const Settings& settings, int64_t micro_batches);
  /// Between steps: rank 0 makes it a checkpoint once all ranks have written. Not collective.
  void look();
  /// Waits for what is under way. False: the last one failed.
  bool finish();

 private:
  void finish_save();
  void note(const zero::CheckpointSave::Result& result);
  void remove_worse(const std::string& newest) const;

  const Options options_;
  const Report report_;
  std::optional<zero::CheckpointSave> save_;
  bool noted_ = false;  // that it is saved
  bool failed_ = false;
};

}  // namespace zg::tools
