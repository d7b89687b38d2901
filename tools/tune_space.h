#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/run.h"
#include "zerograd/zero/config.h"

namespace zg::tools {

/// What `tune` varies of a run.
struct Tuning {
  int stage = 0;
  zero::OffloadOptions offload;
  bool activation_checkpoint = false;
  int64_t micro_batch = 0, accumulation = 1;
  int64_t reduce_bucket_size = 0, prefetch_bucket_size = 0;  ///< elements
};

Tuning tuning_of(const Run& run);
Run tuned(const Run& run, const Tuning& tuning);

/// Flags that make `run`'s command line one of this tuning: its stage and micro-batch, and what
/// differs. None of what was given.
std::vector<std::string> flags_of(const Tuning& tuning, const Run& run);

/// How many of its values the run as given does not have: stage, each place, checkpointing, the
/// micro-batch, each bucket.
int deviations_of(const Tuning& tuning, const Run& run);

/// The same for people to read.
std::string described(const Tuning& tuning, const Run& run);

/// Whether neither a flag nor the text of a config says it; a config's default does not count.
bool is_open(const TrainOptions& options, const std::string& flag);

/// The ZeRO stages that `run` leaves open and that differ in it: one rank has nothing to share but
/// parameters that are elsewhere.
std::vector<int> stages_of(const Run& run);

/// Each stage, offload (optimizer with the sums of gradients, or parameters too; to the host and,
/// where the run has a drive, to the drive) and activation checkpointing off and on. Micro-batch
/// and buckets are the run's.
std::vector<Tuning> families_of(const Run& run);

/// Ascending: the run's own when it was given, the divisors that keep a given --train-batch-size,
/// else powers of two.
std::vector<int64_t> micro_batches_of(const Run& run);
Tuning with_micro_batch(Tuning tuning, int64_t micro_batch, const Run& run);

/// The same in less memory, by what costs speed and nothing else, as it is first: buckets as
/// accelerate sizes them by the width, activations on the host, both.
std::vector<Tuning> smaller_ones(const Tuning& tuning, const Run& run);

}  // namespace zg::tools
