#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "zerograd/zero/checkpoint/checkpoint_save.h"
#include "zerograd/zero/engine.h"

namespace zg::zero {

/// The directory in which a run saves its checkpoints. It removes older checkpoints (retention,
/// Options::keep). A failed save does not end the run and does not change older checkpoints.
///
///   CheckpointDirectory checkpoints({.path = "runs/a", .keep = 2, .loss_of = loss_in}, report);
///   checkpoints.save(engine, {.steps = engine.steps(), .config_json = ...});
///   ...
///   checkpoints.finish();
///
/// Every call except poll() is collective. On meta devices it counts the memory and the
/// communication of a save and writes no file.
class ZG_API CheckpointDirectory {
 public:
  struct Options {
    std::string path;
    int64_t keep = -1;  ///< -1: all; otherwise this many with the lowest loss, and the newest
    bool in_background = false;  ///< true: files are written while training continues
    /// Returns the loss that the run stored in a checkpoint's info. Required unless all are kept.
    /// NaN counts as the worst. If it throws an Error, that checkpoint is kept.
    std::function<double(const CheckpointInfo& info, const std::string& step_n)> loss_of = {};
  };
  /// Called on every rank with the result of each save. After a successful save rank 0 calls it
  /// before the other ranks.
  using Report =
      std::function<void(const std::string& step_n, const CheckpointSave::Result& result)>;
  /// Called on rank 0 if older checkpoints could not be removed, with the reason.
  using Warn = std::function<void(const std::string& message)>;

  /// Throws ConfigError for a `keep` other than -1 without `loss_of`.
  explicit CheckpointDirectory(Options options, Report report = {}, Warn warn = {});

  /// Finishes the previous save, then begins a new one. Returns false if the new one has failed.
  /// With `in_background`, the new save is finished by the next save() or finish(). Throws
  /// ConfigError as zero::save_checkpoint() does.
  bool save(const Engine& engine, const CheckpointInfo& info);
  /// With `in_background`, call it between steps: when all ranks have written, rank 0 completes the
  /// checkpoint. Not collective.
  void poll();
  /// Waits for the current save. Returns false if the last save failed.
  bool finish();

 private:
  void finish_save();
  void note(const CheckpointSave::Result& result);
  void remove_worse(const std::string& newest) const;

  const Options options_;
  const Report report_;
  const Warn warn_;
  std::optional<CheckpointSave> save_;
  bool noted_ = false;  // report_ was called for the current save
  bool failed_ = false;
};

/// RAII: locks a directory, so that no other run saves its checkpoints there. Throws ConfigError if
/// another run holds the lock.
class ZG_API DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;

  /// A warning if the directory could not be locked because its file system has no locks. Empty: it
  /// is locked.
  const std::string& warning() const { return warning_; }

 private:
  int descriptor_;
  std::string warning_;
};

}  // namespace zg::zero
