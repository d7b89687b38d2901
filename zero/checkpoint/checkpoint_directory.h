#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "zerograd/zero/checkpoint/checkpoint_save.h"
#include "zerograd/zero/engine.h"

namespace zg::zero {

/// Where a run writes its checkpoints, and which of them it keeps. A save that fails ends nothing:
/// the run goes on, and the checkpoints that were there stay.
///
///   CheckpointDirectory checkpoints({.path = "runs/a", .keep = 2, .loss_of = loss_in}, report);
///   checkpoints.save(engine, {.steps = engine.steps(), .config_json = ...});
///   ...
///   checkpoints.finish();
///
/// Every call is collective, but for look(). On meta devices it takes the memory and makes the
/// exchanges of a run, and writes no file.
class ZG_API CheckpointDirectory {
 public:
  struct Options {
    std::string path;
    int64_t keep = -1;    ///< -1: all; otherwise that many with the lowest loss, and the newest
    bool behind = false;  ///< files are written while the run goes on
    /// The loss that the run put into its info when it saved; needed where not all are kept. NaN
    /// counts as the worst. An Error keeps the checkpoint.
    std::function<double(const CheckpointInfo& info, const std::string& step_n)> loss_of = {};
  };
  /// Called with the outcome of each step_N; rank 0 first, where it is saved.
  using Report =
      std::function<void(const std::string& step_n, const CheckpointSave::Result& result)>;
  /// Called on rank 0 with the reason why older checkpoints could not be removed.
  using Warn = std::function<void(const std::string& message)>;

  /// ConfigError for `keep` without `loss_of`.
  explicit CheckpointDirectory(Options options, Report report = {}, Warn warn = {});

  /// Finishes the save before, then begins one. False: this one has failed already. One that is
  /// written behind is finished by the next call, of finish() too. ConfigError as
  /// zero::save_checkpoint().
  bool save(const Engine& engine, const CheckpointInfo& info);
  /// Between steps: rank 0 makes it a checkpoint once all ranks have written. Not collective.
  void look();
  /// Waits for the save under way. False: the last one failed.
  bool finish();

 private:
  void finish_save();
  void note(const CheckpointSave::Result& result);
  void remove_worse(const std::string& newest) const;

  const Options options_;
  const Report report_;
  const Warn warn_;
  std::optional<CheckpointSave> save_;
  bool noted_ = false;  // that it is saved
  bool failed_ = false;
};

/// Keeps other runs, which would mix their checkpoints with this one's, out of a directory until it
/// goes out of scope. ConfigError when another run holds it.
class ZG_API DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;

  /// Why the directory could not be locked, on a file system without locks: nothing keeps another
  /// run from writing there. Empty: it is locked.
  const std::string& warning() const { return warning_; }

 private:
  int descriptor_;
  std::string warning_;
};

}  // namespace zg::zero
