#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace zg::test_driver {

/// Settings from the environment variables ZE_TEST_DRIVER_<NAME>, read once.
struct Settings {
  int devices = 2;                           ///< DEVICES
  size_t memory = size_t{2} << 30;           ///< MEMORY: bytes of each device
  std::vector<unsigned> sub_groups{16, 32};  ///< SUB_GROUPS: sizes, ascending; "none"
  unsigned products = 1;       ///< DPAS=0: no tile products (else for the smallest size), 2: wrong
  bool rounded_divide = true;  ///< ROUNDED=0: division and square root are not exactly rounded
  bool imports = true;         ///< IMPORT=0: lacks zexDriverImportExternalPointer
  bool strict = true;          ///< STRICT=0: the host may access device memory
  uint64_t chaos = 0;    ///< CHAOS: seed for the order of unordered commands; 0: submission order
  bool at_once = false;  ///< AT_ONCE=1: work runs when submitted, not at a wait
  bool trace = false;    ///< TRACE=1: names each command and module on stderr
  int patience_ms = 60000;  ///< PATIENCE_MS: a wait with nothing to run fails after this time
  unsigned threads = 2;     ///< THREADS: system threads for the groups of one kernel
  std::string cache;        ///< CACHE: a folder for compiled modules
};
const Settings& settings();

}  // namespace zg::test_driver
