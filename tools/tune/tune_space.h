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

/// The flags that add this tuning to the command line of `run`: stage, micro-batch, and all values
/// that differ. Flags that were given are not repeated.
std::vector<std::string> flags_of(const Tuning& tuning, const Run& run);

/// Number of values that differ from the run as given: stage, each offload location, checkpointing,
/// micro-batch, each bucket.
int deviations_of(const Tuning& tuning, const Run& run);

/// A description of the tuning for the user.
std::string description_of(const Tuning& tuning, const Run& run);

/// Whether `tune` may vary the flag: neither a flag nor the text of a config sets it. A config's
/// default does not count.
bool may_vary(const TrainOptions& options, const std::string& flag);

/// The ZeRO stages to try, unless the run fixes the stage. With one rank only stage 3 with
/// offloaded parameters makes a difference.
std::vector<int> stages_of(const Run& run);

/// All combinations of stage, offload and activation checkpointing. Offloaded are optimizer states
/// and gradient accumulators, or these and parameters, to the host or, if the run has an NVMe path,
/// to NVMe. Micro-batch and buckets are those of the run.
std::vector<Tuning> families_of(const Run& run);

/// The micro-batches to try, ascending: only the run's own if it was given; else, with a given
/// --train-batch-size, its divisors; else powers of two.
std::vector<int64_t> micro_batches_of(const Run& run);
Tuning with_micro_batch(Tuning tuning, int64_t micro_batch, const Run& run);

/// Variants that need less memory at the cost of speed only, starting with the tuning itself:
/// buckets sized by the width as accelerate does, activations on the host, both.
std::vector<Tuning> smaller_variants(const Tuning& tuning, const Run& run);

/// A DeepSpeed config in JSON: the config of `run`, or an empty one, with this tuning in its keys.
/// A section "zerograd" holds the values that DeepSpeed has no key for. Other flags of `run` must
/// still be given as flags.
std::string config_with(const Tuning& tuning, const Run& run);

}  // namespace zg::tools
