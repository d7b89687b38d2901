#pragma once

#include <memory>
#include <string>

#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/engine.h"

namespace zg::zero {

/// Saves the state that the engine has at construction as DIR/step_N (N: info.steps), while
/// training continues. Each rank writes its shard on a separate thread. An optimizer step waits for
/// the data that it is about to overwrite (zero/checkpoint/snapshot.h). Rank 0 writes the other
/// files once all shards are on the disk. An incomplete checkpoint is removed if possible; other
/// checkpoints do not change. Ranks exchange their results by all_reduce: once in the constructor
/// and twice in finish(), also after failures. On a meta device it counts the same memory and
/// communication and writes no file.
class ZG_API CheckpointSave {
 public:
  /// `read_back`: each rank reads its shard again and verifies it. Throws ConfigError as in
  /// save_checkpoint(), or if another save of this engine is in progress. Errors of the disk, or
  /// too little host memory, are reported by finish(). Collective.
  CheckpointSave(const std::string& directory, const Engine& engine, const CheckpointInfo& info,
                 bool read_back = false);
  /// Without finish(), writing stops, and the checkpoint is removed unless rank 0 has committed it.
  ~CheckpointSave();
  CheckpointSave(const CheckpointSave&) = delete;

  const std::string& path() const;  ///< DIR/step_N
  /// True on every rank if the save failed before anything was written. finish() then returns the
  /// reason.
  bool failed_at_once() const;
  /// On rank 0: commits the checkpoint if all ranks have written. Returns whether it is committed.
  /// Call it on the thread that constructed this; not collective.
  bool commit_if_written();
  bool is_committed() const;  ///< true only on rank 0, after its commit

  struct Result {
    int failed_rank = -1;  ///< the first rank that failed; -1: the checkpoint is saved
    /// On the failed rank: path, the system's reason, needed and free bytes. Empty on other ranks.
    std::string reason;
  };
  /// Waits until all ranks have written. Collective; once.
  Result finish();

 private:
  std::unique_ptr<struct CheckpointSaveState> state_;
};

}  // namespace zg::zero
