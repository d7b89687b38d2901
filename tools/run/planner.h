#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "tools/output/memory_json.h"
#include "tools/run/run.h"
#include "zerograd/runtime/step_time.h"
#include "zerograd/zero/report.h"

namespace zg::tools {

/// Dry run of the run's steps as rank `rank` on a device without memory. It executes the same code,
/// so it gives the same bytes as a real run. Limits are not applied. For a run without steps it
/// also covers the end of the run, which reserves less than a step does.
RankMemory dry_run(const Run& run, int rank);

/// Three steps with the run's largest batch. A growing batch may reach that size after the steps of
/// the dry run, so the run needs at least the memory of these steps.
Run largest_steps(const Run& run);

/// Dry run of one rank of each pipeline stage, in order: the one with data rank 0 and tensor rank
/// 0, which needs the most memory of its stage.
std::vector<RankMemory> plan_stages(const Run& run);

/// Dry run of a rank that ends after these steps.
RankMemory dry_run_of_report(const Run& run, int rank);
/// The runs of --compare-metrics, named by their files. Throws ConfigError and FileError.
std::vector<zero::RunCurves> compared_runs(const TrainOptions& options);
/// The parts of a page that need no run: settings, data, processor.
zero::RunPage page_of(const Run& run);
/// The bytes of a rank after its last step, for a page.
zero::ReportedRank reported(const RankMemory& memory);

/// The part of --memory-json that is common to all ranks.
MemoryRecord memory_record(const Run& run);

/// Writes the file of --kernels, if given; with `peaks` it includes the predicted times. `first`:
/// the memory of the first rank. Returns the lines that plan prints about the file.
std::string write_kernels(const Run& run, const RankMemory& first,
                          const std::optional<Peaks>& peaks);

std::string size_text(int64_t bytes);  ///< "1.50 GiB (1610612736 bytes)"

// The needs of a run compared with this machine (budgets.cpp).

/// Whether the NVMe file of a run fits on its disk: the bytes that a plan of all ranks on this
/// machine gives, and the free bytes of the disk.
struct DiskBudget {
  int64_t ranks = 1;
  int64_t needed = 0;  ///< all ranks together; 0: nothing is offloaded to the disk
  int64_t free = 0;    ///< INT64_MAX if the file system does not report it

  bool suffices() const { return needed <= free; }
  /// "2 ranks take 1.5 GiB (1610612736 bytes) by plan, and 1.0 GiB (...) are free".
  std::string str() const;
};
DiskBudget disk_budget(const Run& run, const Needs& each);

/// Checks the limits before a run allocates or writes anything. The needs come from a plan of its
/// first steps, or of its initialisation if it takes no steps. Throws OutOfMemory when all ranks
/// together need more threads, memory or addresses than this machine and its limits allow, or one
/// rank needs more than --host-memory. Throws FileError when the disk of --nvme-path has too little
/// free space. A limit on device memory is not checked here: the run's own error lists the live
/// memory.
void check_budgets(const Run& run);

/// The largest n in [1, most] for which fits(n) is true; 0: there is none. If fits(n) is true, it
/// must be true for all smaller n.
template <class Fits>
int64_t largest_fitting(int64_t most, const Fits& fits) {
  int64_t fitting = 0, beyond = 1;  // beyond: the smallest n that is known not to fit
  for (; beyond <= most && fits(beyond); beyond *= 2) fitting = beyond;
  beyond = std::min(beyond, most + 1);
  while (beyond - fitting > 1) {
    const int64_t middle = fitting + (beyond - fitting) / 2;
    (fits(middle) ? fitting : beyond) = middle;
  }
  return fitting;
}

}  // namespace zg::tools
