#pragma once

#include <string>

#include "tools/planner.h"

namespace zg::tools {

/// What becomes of a run where nothing is free for its file, before anything is allocated: the
/// plan of its ranks on this machine beside what their drive has free.
struct DriveBudget {
  int64_t ranks = 1;
  int64_t needed = 0;  ///< of all of them; 0: nothing goes to a drive
  int64_t free = 0;    ///< INT64_MAX where the file system does not say

  bool suffices() const { return needed <= free; }
  std::string str()
      const;  ///< "2 ranks take 1.5 GiB (1610612736 bytes), and 1.0 GiB (...) are free"
};
DriveBudget drive_budget(const Run& run, const Needs& each);

/// Before a run allocates or writes anything, by a plan of its first steps, or of its
/// initialisation where it takes none: OutOfMemory when all ranks together need more threads,
/// memory or addresses than this machine and its limits allow, or one more than --host-memory;
/// FileError when the drive of --nvme-path has too little free. A cap of the device is left to the
/// run, whose error lists what is there.
void check_budgets(const Run& run);

}  // namespace zg::tools
