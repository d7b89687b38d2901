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
  unsigned products = 1;  ///< DPAS=0: no tile products (else for the smallest size), 2: wrong, 3:
                          ///< the driver does not say whether there are any
  std::string kind = "test";  ///< KIND: test, cpu, integrated or gpu, which the devices claim to be
  uint32_t version = 33276;   ///< VERSION: build of the driver, which stands for Intel's 25.13
  uint32_t groups = 2;        ///< GROUPS: of queues; the first computes, the others only copy
  bool in_order = true;       ///< IN_ORDER=0: the flag of ordered lists is refused
  int build_ms = 0;           ///< BUILD_MS: a build from SPIR-V takes at least so long
  int builds_meet = 0;        ///< BUILDS_MEET: the first builds wait until so many run at once
  bool rounded_divide = true;  ///< ROUNDED=0: no flag rounds division exactly
  bool imports = true;         ///< IMPORT=0: lacks zexDriverImportExternalPointer
  bool peers = false;          ///< PEERS=1: a command reaches another device's chunk that it names
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
