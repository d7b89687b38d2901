#pragma once

#include <string>

#include "tools/output/memory_json.h"
#include "tools/run/run.h"

namespace zg::tools {

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

}  // namespace zg::tools
