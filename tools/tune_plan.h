#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/planner.h"
#include "tools/tune_space.h"

namespace zg::tools {

/// What this machine reaches, all ranks together: operations and bytes per second.
struct Rates {
  double flops, memory, drive;
};
Rates measured_rates(const Run& run);

/// Of a step's: later ones take nothing that the third does not.
inline constexpr int64_t walked_micro_batches = 3;

/// One step by what it computes and moves, one after the other: products of matrices at 0.6 of
/// their peak (a third more where activations are computed again), and at the memory's bandwidth
/// weights, AdamW, exchanges and what goes to the host; at 1 GB/s the drive. `memory` is of a walk
/// with at most walked_micro_batches.
double predicted_seconds(const Run& run, const RankMemory& memory, const Rates& rates);

struct Planned {
  Tuning tuning;
  Needs needs;        ///< of rank 0
  double seconds;     ///< of a step, predicted
  double load;        ///< the largest share of what a cap, the machine's memory or the drive has
  std::string tight;  ///< what that is: "--device-memory"
  bool fits;

  double samples_per_s(const Run& run) const;
};
Planned planned(const Run& run, const Tuning& tuning, const Rates& rates);

struct Plans {
  std::vector<Planned> fitting;  ///< the fastest first
  std::vector<Planned> rest;     ///< what does not fit; the smallest first
  bool whole = true;             ///< false: the time was up before all were planned
};

/// Every family with every micro-batch, until one does not fit or a step would take more than
/// `longest_step_s`; each in the first of smaller_ones() that fits.
Plans plan_all(const Run& run, const Rates& rates, double seconds, double longest_step_s);

/// For each stage, all else as the run has it, the largest micro-batch that fits: by doubling and
/// halving, to the sample; of a given --train-batch-size its divisors. In order of the stages.
Plans plan_largest(const Run& run, const Rates& rates);

}  // namespace zg::tools
