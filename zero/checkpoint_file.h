#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/autograd/weights.h"
#include "zerograd/runtime/api.h"
#include "zerograd/zero/engine.h"

namespace zg::zero {

// DIR/step_N, N attempted steps, holds
//   shard_RRRRR.safetensors   of each rank: f32 tensors named PARAMETER:STATE@OFFSET, where STATE
//                             is master, moment1 or moment2 (a frozen parameter has its value as
//                             master) and OFFSET the parameter's element that it begins with. One
//                             that holds the whole parameter has its shape, a part has one axis.
//                             A tensor rank's part that is no range of elements is named
//                             PARAMETER:STATE@OFFSET/OUTERxEXTENTxINNER/BEGIN+ROWS: of each of
//                             OUTER blocks of EXTENT rows of INNER elements it has ROWS rows from
//                             BEGIN on, and OFFSET counts its own elements.
//   manifest.json             format, version, the counters and config of CheckpointInfo,
//                             parameters (name to shape), tensors (name, dtype, shape, file and
//                             XXH3-128 of the bytes, and of long ones that of each block of 2^20
//                             elements), headers (file to XXH3-128 of its bytes
//                             before the tensors), files (name to XXH3-128 of the contents), the
//                             state of a dynamic loss scale, and a checksum of the manifest itself
//   the files of CheckpointInfo, under their own names
// Beside the step_N, DIR/latest is the name of the one saved last. Nothing here reads it.
// Shards hold parts of parameters, cut where the ranks' were: whoever loads puts them together by
// offset, at any number of ranks and any stage.

/// What a checkpoint holds besides tensors.
struct CheckpointInfo {
  int64_t steps = 0;  ///< attempted optimizer steps
  int64_t skipped = 0;
  int64_t micro_batches = 0;     ///< consumed so far: the position in the data
  std::string config_json = {};  ///< the caller's own JSON object: model, data and run settings
  /// Small files that belong to the run, as a tokenizer.json: name to contents. Rank 0 writes them
  /// beside the shards. A name has letters, digits, '.', '_' and '-', does not begin with '.' or
  /// "shard_" and is not "manifest.json"; all contents together have at most 1 GiB.
  std::map<std::string, std::string> files = {};
};

/// Writes DIR/step_N (N: info.steps) in a temporary folder, fsyncs and renames it, so a step_N that
/// exists is complete; one that existed before is replaced in one step. One process at a time
/// writes to a DIR: what a killed one left unfinished is removed. Returns the path. FileError on
/// every rank alike when any could not write: nothing else was changed, and the engine goes on.
/// ConfigError when counters differ from the engine's, gradients wait for a step or a file has a
/// name that it cannot have. Collective:
/// each rank writes its shard, rank 0 the rest once all are on the disk; the folder is there when
/// any rank returns. zero/checkpoint_save.h does it while the engine goes on.
ZG_API std::string save_checkpoint(const std::string& directory, const Engine& engine,
                                   const CheckpointInfo& info);

/// Removes from a DIR what saves have left that failed or were killed, as far as that can be done.
/// No save may be under way there.
ZG_API void remove_unfinished(const std::string& directory) noexcept;

struct StepFolder {
  int64_t steps;
  std::string path;
};
/// The step_N of a directory, newest first; one that is not there holds none. FileError.
ZG_API std::vector<StepFolder> step_folders(const std::string& directory);

/// Removes a step_N under another name, so that whoever is killed meanwhile leaves no part of one.
/// FileError.
ZG_API void remove_checkpoint(const std::string& step_folder);

/// `path` is a DIR (its newest step_N) or one step_N. Returns the step_N; FileError when none.
ZG_API std::string find_checkpoint(const std::string& path);

/// Whether a step_N lies in a directory, however the two are spelled.
ZG_API bool lies_in(const std::string& step_folder, const std::string& directory);

/// Whether load_checkpoint() finds a checkpoint at a path: a step_N, or a directory with some. In a
/// plan (runtime/plan.h) also what the plan saved before.
ZG_API bool has_checkpoint(const std::string& path, const Engine& engine);

/// A step_N whose files are open (zero/checkpoint_reader.h). Whoever reads one while another
/// process saves and removes checkpoints reads it by this, and not by its path, which may lead to
/// nothing or to another one the next time.
class CheckpointReader;
/// The one that find_checkpoint() finds; what goes away meanwhile is looked for again. FileError.
ZG_API std::shared_ptr<CheckpointReader> open_checkpoint(const std::string& path);
/// The checkpoint that --resume takes: a step_N as it is, of a DIR the newest that verifies.
/// `passed_over` is told of those that do not, once of each. A step_N that is removed or replaced
/// meanwhile is none of them: the choice begins again. FileError when there is none.
using PassedOver = std::function<void(const StepFolder& folder, const std::string& damage)>;
ZG_API std::shared_ptr<CheckpointReader> choose_checkpoint(const std::string& path,
                                                           const PassedOver& passed_over = {});

/// With its files. FileError, also when one of them is missing or damaged.
ZG_API CheckpointInfo read_checkpoint_info(const std::string& path);

/// Reads every byte of a step_N. What is missing or damaged, an entry each, naming file, tensor and
/// place; none: it can be loaded as it was saved.
ZG_API std::vector<std::string> damages_of(const std::string& step_folder);
/// The first of them as a FileError.
ZG_API void verify_checkpoint(const std::string& path);

/// Collective in a mesh. Restores masters, moments, counters and a dynamic loss scale (without one
/// in the checkpoint: as a new run starts). The parameters must be the engine's, by name and shape,
/// which is checked first; bytes are checked as they come, so after a FileError about a damaged
/// tensor the engine holds a mixture: make another. For an engine on meta the manifest is read and
/// no values, here and in load_weights. Of ranks in a mesh that find different checkpoints at the
/// path the result is a mixture: where checkpoints come and go, choose one and load its reader.
ZG_API CheckpointInfo load_checkpoint(const std::string& path, Engine& engine);
ZG_API void load_checkpoint(const CheckpointReader& checkpoint, Engine& engine);

/// A plain safetensors file's floating tensors or a checkpoint's masters. FileError.
ZG_API WeightSource weights_of(const std::string& path);
ZG_API WeightSource weights_of(const std::shared_ptr<CheckpointReader>& checkpoint);

/// Weights only, by parameter name, rounded to Config::load; others are ignored. FileError naming
/// what is missing or has another shape, and what there is instead, before anything is written.
ZG_API void load_weights(const WeightSource& weights, Engine& engine);
ZG_API void load_weights(const std::string& path, Engine& engine);  ///< weights_of()

/// The gradients accumulated since the last step, divided by the number of all ranks' micro-batches
/// and the loss scale, by parameter name, in f32, as safetensors: of the whole model, which rank 0
/// writes. ConfigError when there were no micro-batches. Collective; not on meta.
ZG_API void dump_gradients(const std::string& path, const Engine& engine);

}  // namespace zg::zero
