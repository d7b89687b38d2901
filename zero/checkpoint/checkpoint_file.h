#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/runtime/api.h"
#include "zerograd/zero/checkpoint/checkpoint_info.h"
#include "zerograd/zero/engine.h"

namespace zg::zero {

/// Writes DIR/step_N (N: info.steps) to a temporary folder, fsyncs and renames it, so a step_N that
/// exists is complete. An older step_N is replaced atomically. Only one process at a time may write
/// to a directory; unfinished files of a killed process are removed. Returns the path. Throws
/// FileError on every rank if any rank could not write; then older checkpoints are unchanged, and
/// the engine can continue. Throws ConfigError when info.steps or info.skipped differ from the
/// engine's, when info.config_json is not a JSON object, when there are gradients since the last
/// step, when info.files has a name or a size that is not allowed, or when parameters are not saved
/// and info.base is empty. Collective: each rank writes its shard, and rank 0 writes the other
/// files after all shards are on the disk. When a rank returns, the checkpoint is complete. To save
/// while the engine continues, use zero/checkpoint/checkpoint_save.h.
ZG_API std::string save_checkpoint(const std::string& directory, const Engine& engine,
                                   const CheckpointInfo& info);

/// Removes from a directory the files of saves that failed or were killed. Ignores errors. No save
/// may be in progress there.
ZG_API void remove_unfinished(const std::string& directory) noexcept;

struct StepFolder {
  int64_t steps;
  std::string path;
};
/// The step_N folders of a directory, newest first. Empty if it does not exist. Throws FileError.
ZG_API std::vector<StepFolder> step_folders(const std::string& directory);

/// Renames a step_N, then removes it, so that a process killed meanwhile leaves no incomplete
/// step_N. Throws FileError.
ZG_API void remove_checkpoint(const std::string& step_folder);

/// Returns the step_N folder at `path`: `path` itself, or the newest step_N in the directory
/// `path`. Throws FileError if there is none.
ZG_API std::string find_checkpoint(const std::string& path);

/// True if `step_folder` is directly in `directory`. The two paths are compared after symbolic
/// links and relative parts are resolved.
ZG_API bool lies_in(const std::string& step_folder, const std::string& directory);

/// True if `path` is a step_N with a manifest, or a directory with a step_N folder.
/// load_checkpoint() throws FileError if no such folder has a manifest. On a meta device a
/// checkpoint that was saved earlier in the same plan (runtime/plan.h) counts too, although it has
/// no files.
ZG_API bool has_checkpoint(const std::string& path, const Engine& engine);

/// A step_N whose files are open (zero/checkpoint/checkpoint_reader.h). Use it to read a checkpoint
/// while another process saves and removes checkpoints: after the path is removed or replaced, the
/// reader still reads the step_N that was opened.
class CheckpointReader;
/// Opens the step_N that find_checkpoint() returns. If another process removes or replaces that
/// folder meanwhile, searches again. Throws FileError.
ZG_API std::shared_ptr<CheckpointReader> open_checkpoint(const std::string& path);
/// Opens the checkpoint that --resume uses: the step_N at `path`, or the newest undamaged step_N in
/// the directory `path` (every byte is checked). `passed_over` is called once for each newer
/// step_N, which is skipped because it is damaged. If a step_N is removed or replaced meanwhile,
/// the choice begins again. Throws FileError when there is none.
using PassedOver = std::function<void(const StepFolder& folder, const std::string& damage)>;
ZG_API std::shared_ptr<CheckpointReader> choose_checkpoint(const std::string& path,
                                                           const PassedOver& passed_over = {});

/// Reads the info of a checkpoint, with the contents of its files. Throws FileError, also if one of
/// them is missing or damaged.
ZG_API CheckpointInfo read_checkpoint_info(const std::string& path);

/// Reads every byte of a step_N. Returns an entry for each missing or damaged item, with file,
/// tensor and location. Empty: the checkpoint can be loaded as it was saved.
ZG_API std::vector<std::string> damages_of(const std::string& step_folder);
/// Throws FileError with the first entry of damages_of(), if there is one.
ZG_API void verify_checkpoint(const std::string& path);

/// Restores master weights, moments, counters and a dynamic loss scale (if the checkpoint has none,
/// the scale of a new run). First it checks that the checkpoint has the engine's parameters, with
/// the same names and shapes and without missing elements, and that the optimizer is the engine's
/// (ConfigError). Parameters that are not saved stay as they are: load
/// them with load_weights() from CheckpointInfo::base. Bytes are verified while they are read:
/// after a FileError about a damaged tensor only some of the engine's values have been replaced,
/// and the engine must not be used. For an engine on a meta device no tensor is read, here and in
/// load_weights(). Each rank of a mesh opens the path itself. If another process saves or removes
/// checkpoints there, the ranks can open different ones; then pass each rank a reader of the same
/// step_N (open_checkpoint()). Collective in a mesh.
ZG_API CheckpointInfo load_checkpoint(const std::string& path, Engine& engine);
ZG_API void load_checkpoint(const CheckpointReader& checkpoint, Engine& engine);

/// The floating-point tensors of a safetensors file, or the master weights of a checkpoint. Throws
/// FileError.
ZG_API WeightSource weights_of(const std::string& path);
ZG_API WeightSource weights_of(const std::shared_ptr<CheckpointReader>& checkpoint);

/// Loads weights only, by parameter name, rounded to Config::load. Other tensors are ignored.
/// Throws FileError before anything is written if a tensor is missing or has another shape; the
/// message of a missing tensor lists up to three tensors of the file that the model does not use,
/// those of the wanted shape first.
ZG_API void load_weights(const WeightSource& weights, Engine& engine);
/// Loads only the parameters for which `only` returns true, for example those that are not saved.
/// The weights need not have the others.
ZG_API void load_weights(const WeightSource& weights, Engine& engine,
                         const std::function<bool(const Parameter&)>& only);
/// load_weights(weights_of(path), engine).
ZG_API void load_weights(const std::string& path, Engine& engine);

/// XXH3-128 in hex over the f32 bytes of all tensors, in byte order of their names: the
/// Engine::parameter_hash() of an f32 engine with these parameters.
ZG_API std::string weights_hash(const WeightSource& weights);
/// Throws FileError, with the path and both hashes, unless these are the weights of `base`.
ZG_API void check_base(const CheckpointInfo::Base& base, const WeightSource& weights);

/// Writes the whole model's gradients since the last step as f32 safetensors, by parameter name.
/// They are divided by the number of all ranks' micro-batches and by the loss scale. Rank 0 writes.
/// Throws ConfigError when there were no micro-batches. Collective. On a meta device nothing is
/// written; on a meta device with a mesh it throws Unsupported.
ZG_API void dump_gradients(const std::string& path, const Engine& engine);

}  // namespace zg::zero
