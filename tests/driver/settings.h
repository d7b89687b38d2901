#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace zg::test_driver {

/// What the environment asks for, read once: ZE_TEST_DRIVER_<NAME>.
struct Settings {
  int devices = 2;                           ///< DEVICES
  size_t memory = size_t{2} << 30;           ///< MEMORY: bytes that each device has
  std::vector<unsigned> sub_groups{16, 32};  ///< SUB_GROUPS: sizes, ascending; "none"
  unsigned products = 1;  ///< DPAS=0: no products of tiles (else for the smallest size), 2: wrong
  bool rounded_divide = true;  ///< ROUNDED=0: does not promise exact division and square root
  bool imports = true;         ///< IMPORT=0: lacks zexDriverImportExternalPointer
  bool strict = true;          ///< STRICT=0: the host may reach the memory of devices
  uint64_t chaos = 0;          ///< CHAOS: seed of the order of what has none; 0: as it was given
  bool at_once = false;        ///< AT_ONCE=1: work is done when it is given, not when waited for
  bool trace = false;          ///< TRACE=1: names each command and module on stderr
  int patience_ms = 5000;      ///< PATIENCE_MS: until a wait with nothing to run is given up
  unsigned threads = 2;        ///< THREADS: of the system, for the groups of one kernel
  std::string cache;           ///< CACHE: a folder for compiled modules
};
const Settings& settings();

}  // namespace zg::test_driver
