#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/run/planner.h"
#include "tools/tune/tune_space.h"

namespace zg::tools {

/// Rates of this machine, all ranks together: operations and bytes per second.
struct Rates {
  double flops, memory, disk;
};
Rates measured_rates(const Run& run);

/// Micro-batches in a planned step; later ones do not need more memory than the third.
inline constexpr int64_t planned_micro_batches = 3;

/// Predicted time of one step: the sum over its computations and transfers. Matrix products run at
/// 0.6 of their peak (a third more operations with activation checkpointing). Weights, AdamW,
/// collectives and host offload run at the memory bandwidth, disk offload at 1 GB/s. `memory` comes
/// from a dry run with at most walked_micro_batches.
double predicted_seconds(const Run& run, const RankMemory& memory, const Rates& rates);

struct Planned {
  Tuning tuning;
  Needs needs;     ///< of rank 0, planned
  double seconds;  ///< predicted time of a step
  double load;  ///< largest used fraction of a limit: a flag's, the machine's memory or the disk's
  std::string tight;  ///< name of that limit: "--device-memory"
  bool fits;

  double samples_per_s(const Run& run) const;
};
Planned planned(const Run& run, const Tuning& tuning, const Rates& rates);

struct Plans {
  std::vector<Planned> fitting;  ///< sorted by predicted time, fastest first
  std::vector<Planned> rest;     ///< settings that do not fit; smallest first
  bool whole = true;             ///< false: the time limit ended the search before all were planned
};

/// Plans every family with every micro-batch, until one does not fit or a step would take longer
/// than `longest_step_s`. Each is planned as the first of smaller_ones() that fits.
Plans plan_all(const Run& run, const Rates& rates, double seconds, double longest_step_s);

/// For each stage, in order, the largest micro-batch that fits, with all other settings of the run.
/// Found by doubling and bisection, exact to one sample; with --train-batch-size only its divisors
/// are tried.
Plans plan_largest(const Run& run, const Rates& rates);

}  // namespace zg::tools
