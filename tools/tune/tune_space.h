#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/run/run.h"
#include "zerograd/zero/config.h"

namespace zg::tools {

/// The settings that `tune` varies.
struct Tuning {
  int stage = 0;
  zero::OffloadOptions offload;
  bool activation_checkpoint = false;
  int64_t micro_batch = 0, accumulation = 1;
  int64_t reduce_bucket_size = 0, prefetch_bucket_size = 0;  ///< elements
};

Tuning tuning_of(const Run& run);
Run tuned(const Run& run, const Tuning& tuning);

/// The flags that, added to the command line of `run`, give this tuning: stage and micro-batch,
/// unless they were given, and all other values that differ from the run's.
std::vector<std::string> flags_of(const Tuning& tuning, const Run& run);

/// Number of values that differ from the run as given: stage, each offload location, checkpointing,
/// micro-batch, each bucket.
int deviations_of(const Tuning& tuning, const Run& run);

/// A description of the tuning for the user.
std::string description_of(const Tuning& tuning, const Run& run);

/// True if `tune` may vary the flag: it is not on the command line, and its key is not written in
/// the DeepSpeed config. The default value of a key does not count.
bool may_vary(const TrainOptions& options, const std::string& flag);

/// The ZeRO stages to try: the run's own if the stage was given; else only 3 if the run offloads
/// parameters; else 0 and 3 with one rank, where 1 and 2 equal 0; else 0 and 1 if gradients are
/// reduced at the boundary; else all.
std::vector<int> stages_of(const Run& run);

/// All combinations of stage, offload and activation checkpointing. Offload varies where its flags
/// may vary: nothing; optimizer states and gradient accumulators; in stage 3 these and parameters.
/// They go to the host or, if the run has an NVMe path, to NVMe; gradient accumulators never go to
/// NVMe. With one rank, stage 3 is tried only with offloaded parameters. Micro-batch and buckets
/// are those of the run.
std::vector<Tuning> families_of(const Run& run);

/// The micro-batches to try, ascending: only the run's own if --batch-size, or --train-batch-size
/// and --grad-accum, were given; else, with --train-batch-size, the divisors of each rank's share
/// of it; else powers of two.
std::vector<int64_t> micro_batches_of(const Run& run);
Tuning with_micro_batch(Tuning tuning, int64_t micro_batch, const Run& run);

/// The tuning itself, then variants that need less memory and are slower, with the same results:
/// bucket sizes computed from the model's width as Hugging Face Accelerate does (width^2 and 0.9
/// width^2), activations on the host, both.
std::vector<Tuning> smaller_variants(const Tuning& tuning, const Run& run);

/// A DeepSpeed config in JSON: the config of `run`, or an empty one, with this tuning in its keys.
/// A section "zerograd" holds the values that DeepSpeed has no key for. Other flags of `run` must
/// still be given as flags.
std::string config_with(const Tuning& tuning, const Run& run);

}  // namespace zg::tools
