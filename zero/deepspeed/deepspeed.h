#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "zerograd/runtime/api.h"
#include "zerograd/runtime/device.h"
#include "zerograd/zero/batch_size.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer/schedule.h"

namespace zg::zero {

/// The version of DeepSpeed whose defaults are used for keys that are missing in a block of a
/// config.
enum class DeepSpeedVersion : uint8_t { v0_19, v0_16 };

/// Bucket sizes that the config sets to "auto", computed from the model's width as accelerate does.
/// 0: the config sets this size.
struct BucketsByWidth {
  double reduce_per_square = 0.0, prefetch_per_square = 0.0;  ///< elements per width * width
  double persistence_per_width = 0.0;                         ///< elements per width
};

/// Sets the bucket sizes of `engine` for a model of this width.
ZG_API void fill_buckets(const BucketsByWidth& buckets, int64_t width, Config& engine);

/// Settings of a config that a program can override.
enum class DeepSpeedField : uint8_t {
  micro_batch,
  accumulation,
  train_batch,
  rate,  ///< the optimizer's lr and a schedule's highest rate
  beta1,
  beta2,
  optimizer,  ///< its rule; overrides a block `optimizer` of another rule
  epsilon,
  momentum,
  nesterov,
  matrix_momentum,
  matrix_nesterov,
  matrix_rate,  ///< how the rate is adjusted to a matrix
  adam_rate,    ///< that of other parameters, relative to that of matrices
  weight_decay,
  schedule,  ///< its kind; overrides the whole block `scheduler`
  warmup_steps,
  clip_norm,
  precision,  ///< compute dtype; overrides the blocks `fp16` and `bf16`
  grad_accum_dtype,
  initial_scale_power,  ///< overrides a constant loss_scale, too
  stage,
  reduce_bucket_size,
  prefetch_bucket_size,
  param_persistence_threshold,
  overlap_comm,
  offload_optimizer,
  offload_gradients,
  offload_parameters,
  offload_activations,
  nvme_path,
  activation_checkpoint,
  async_save,
  autotuning,
  memory_breakdown
};

/// A DeepSpeed config, as types of this library.
struct DeepSpeedConfig {
  Config engine = {};
  /// If total_num_steps is "auto" in the config, the program's value is used.
  ScheduleOptions schedule = {};
  std::string preset = {};  ///< name of the PrecisionPreset that set the dtypes of `engine`
  /// For solve_batch_size(). A micro-batch of "auto" that does not follow from other numbers is
  /// default_micro_batch.
  BatchRequest batch = {};
  BucketsByWidth buckets = {};  ///< for fill_buckets()
  /// For the device: the aio block, and nvme_path as its directory. (g++ 12 warns of {} here.)
  SwapOptions swap = SwapOptions();
  /// Tensors saved by checkpointed blocks are stored in host memory.
  bool cpu_checkpointing = false;
  bool activation_checkpoint = false;  ///< for the model: recompute blocks in backward
  bool async_save = false;             ///< for CheckpointDirectory::Options
  bool autotuning = false;             ///< the program searches for a fast setting first
  int64_t steps_per_print = 0;         ///< 0: not given
  bool memory_breakdown = false;

  // How the config was read.
  std::vector<std::string> warnings = {};  ///< unknown keys, with `lenient`
  /// A line for each key without effect, with the reason.
  std::vector<std::string> without_effect = {};
  /// With dump_state: each key, "zero_optimization.stage = 2".
  std::vector<std::string> state = {};
  /// Fields that were set by the config's text or by defaults.
  std::set<DeepSpeedField> taken = {};
  std::set<DeepSpeedField> defaulted = {};  ///< those of `taken` that were set by a default
  /// Keys in the text that the program overrides.
  struct Overridden {
    std::string key;  ///< "optimizer.params.lr"
    DeepSpeedField field;
    bool operator==(const Overridden&) const = default;
  };
  std::vector<Overridden> overridden = {};
};

struct DeepSpeedOptions {
  DeepSpeedVersion version = DeepSpeedVersion::v0_19;
  bool lenient = false;  ///< unknown keys are warnings, not errors
  /// The program's own values. They are used for keys that the config leaves out or sets to "auto".
  DeepSpeedConfig program = {};
  /// Fields for which the value in `program` overrides the config.
  std::set<DeepSpeedField> decided = {};
};

/// Reads a DeepSpeed config: JSON with comments (Hjson). The argument is a path, or the text
/// itself, which starts with { or is base64 as launchers pass it. Throws FileError; ConfigError
/// with file, line, column, key, expected and actual value, and what to try; Unsupported for a
/// feature that this library does not have.
///
///   const auto config = zero::read_deepspeed_config("ds_config.json");
///   const Device device = Device::cpu(ranks.rank(), {.swap = config.swap});
///   zero::Engine engine(store, ranks, device, config.engine);
///   const zero::BatchSize batch = zero::solve_batch_size(config.batch, ranks.size());
///   zero::Trainer trainer(engine, {.micro_batch = batch.micro, .accumulation = batch.accumulation,
///                                  .steps = 1000, .schedule = config.schedule}, task);
ZG_API DeepSpeedConfig read_deepspeed_config(const std::string& path_or_text,
                                             const DeepSpeedOptions& options = {});

}  // namespace zg::zero
