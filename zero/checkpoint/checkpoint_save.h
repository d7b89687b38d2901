#pragma once

#include <memory>
#include <string>

#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/engine.h"

namespace zg::zero {

/// A checkpoint on its way to DIR/step_N (N: info.steps): the engine's state as it is when this is
/// made. Each rank writes its shard on a thread of its own while the engine goes on; a step waits
/// for what it is about to overwrite (zero/checkpoint/snapshot.h). Rank 0 writes the rest once all
/// shards are on the disk. What is not on the disk at the end is removed, as far as that can be
/// done; other checkpoints stay as they are. Ranks hear of each other by sums of world integers:
/// once here and twice in finish(), whatever fails. On a meta device the same memory and exchanges,
/// and no file.
class ZG_API CheckpointSave {
 public:
  /// read_back: a shard that does not verify when it is read again is a failure, too. ConfigError
  /// as save_checkpoint(), or when the engine is being saved already. What the disk or the host's
  /// cap refuses is no error here. Collective.
  CheckpointSave(const std::string& directory, const Engine& engine, const CheckpointInfo& info,
                 bool read_back = false);
  /// Without finish() nothing more is written, and what rank 0 has not yet committed goes.
  ~CheckpointSave();
  CheckpointSave(const CheckpointSave&) = delete;

  const std::string& path() const;  ///< DIR/step_N
  /// Known on every rank: before anything was written there was no way to. It is time to finish().
  bool failed_at_once() const;
  /// On rank 0: makes it a checkpoint as soon as all ranks have written; whether it is one now. On
  /// the thread that made this; not collective.
  bool commit_if_written();
  bool is_committed() const;  ///< true only on rank 0, after its commit

  struct Result {
    int failed_rank = -1;  ///< the first that could not do its part; -1: it is saved
    /// There: path, the system's reason, needed and free bytes. On all others empty.
    std::string reason;
  };
  /// Waits until all ranks have written. Collective; once.
  Result finish();

 private:
  std::unique_ptr<struct CheckpointSaveState> state_;
};

}  // namespace zg::zero
