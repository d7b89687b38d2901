#pragma once

#include <cstdint>
#include <string>

#include "runtime/api.h"
#include "zero/engine.h"

namespace zg::zero {

/// What a checkpoint holds besides tensors.
struct CheckpointInfo {
  int64_t steps = 0;  ///< attempted optimizer steps
  int64_t skipped = 0;
  int64_t micro_batches = 0;  ///< consumed so far: the position in the data
  std::string config_json;    ///< the caller's own JSON object: model, data and run settings
};

/// Writes DIR/step_N (N: info.steps): shard_00000.safetensors with, per parameter and global
/// offset, master, moment1 and moment2 in f32, then manifest.json. It is built in a temporary
/// folder, fsynced and renamed, so a step_N that exists is complete. Returns the path. FileError.
ZG_API std::string save_checkpoint(const std::string& directory, const Engine& engine,
                                   const CheckpointInfo& info);

/// `path` is a DIR (its newest step_N) or one step_N. Returns the step_N; FileError when none.
ZG_API std::string find_checkpoint(const std::string& path);
ZG_API CheckpointInfo read_checkpoint_info(const std::string& path);

/// Restores masters, moments and counters; every parameter must be there with its shape.
ZG_API CheckpointInfo load_checkpoint(const std::string& path, Engine& engine);

/// Weights only, by parameter name, from a plain safetensors file or a checkpoint (its masters).
/// FileError naming what is missing or has another shape, and what the file has instead.
ZG_API void load_weights(const std::string& path, Engine& engine);

/// The gradients accumulated since the last step, divided by the number of micro-batches, by
/// parameter name, as safetensors.
ZG_API void dump_gradients(const std::string& path, const Engine& engine);

}  // namespace zg::zero
