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

/// The DeepSpeed whose defaults fill what a config leaves out of a block that it has.
enum class DeepSpeedVersion : uint8_t { v0_19, v0_16 };

/// Buckets that a config leaves to the model's width, as accelerate fills "auto". 0: not this one.
struct BucketsByWidth {
  double reduce_per_square = 0.0, prefetch_per_square = 0.0;  ///< elements per width * width
  double persistence_per_width = 0.0;                         ///< elements per width
};

/// Gives the engine the buckets of a model of this width.
ZG_API void fill_buckets(const BucketsByWidth& buckets, int64_t width, Config& engine);

/// Settings that a program can decide itself, whatever a config says.
enum class DeepSpeedField : uint8_t {
  micro_batch,
  accumulation,
  train_batch,
  rate,  ///< the optimizer's lr and a schedule's highest rate
  beta1,
  beta2,
  epsilon,
  weight_decay,
  schedule,  ///< its kind, and with it all of the block `scheduler`
  warmup_steps,
  clip_norm,
  precision,  ///< compute dtype, and with it the blocks `fp16` and `bf16`
  grad_accum_dtype,
  initial_scale_power,  ///< and with it a static loss_scale
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
  memory_breakdown
};

/// A config of DeepSpeed, as the types of this library.
struct DeepSpeedConfig {
  Config engine = {};
  /// Where its total_num_steps is "auto", the program's counts.
  ScheduleOptions schedule = {};
  std::string preset = {};  ///< a PrecisionPreset's name, which gave the engine its dtypes
  /// For solve_batch_size(). An "auto" that no number settles is default_micro_batch.
  BatchRequest batch = {};
  BucketsByWidth buckets = {};  ///< for fill_buckets()
  /// For the device: the aio block, and nvme_path as its directory. (g++ 12 warns of {} here.)
  SwapOptions swap = SwapOptions();
  bool cpu_checkpointing = false;      ///< tensors kept by checkpointed blocks go to host memory
  bool activation_checkpoint = false;  ///< for the model: recompute blocks in backward
  bool async_save = false;             ///< for CheckpointDirectory::Options
  int64_t steps_per_print = 0;         ///< 0: not given
  bool memory_breakdown = false;

  // How the config was read.
  std::vector<std::string> warnings = {};        ///< unknown keys of a lenient reading
  std::vector<std::string> without_effect = {};  ///< a line for each such key, with the reason
  /// With dump_state: each key, "zero_optimization.stage = 2".
  std::vector<std::string> state = {};
  std::set<DeepSpeedField> taken = {};      ///< fields that the config's text or its defaults set
  std::set<DeepSpeedField> defaulted = {};  ///< those of `taken` that a default set
  /// Keys that the text gives and the program overrides.
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
  /// The program's own values: what the config leaves out or says "auto" of keeps them.
  DeepSpeedConfig program = {};
  /// Fields whose value in `program` counts whatever the config says.
  std::set<DeepSpeedField> decided = {};
};

/// Reads DeepSpeed's config, JSON with comments (Hjson): a path, or the text itself, which starts
/// with { or is base64 as launchers pass it. FileError; ConfigError with file, line, column and
/// key, what was expected, what came and what to try; Unsupported for what is asked for and not
/// done.
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
