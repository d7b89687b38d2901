#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "zerograd/runtime/memory.h"

namespace zg {

/// A block of Space::device, from its allocation to its free.
struct MemoryBlock {
  int64_t offset = 0, bytes = 0;  ///< in the arena; rounded up to arena_granule
  Purpose purpose = Purpose::activation;
  std::string name = {};   ///< of the innermost NameScope
  std::string phase = {};  ///< in which it was allocated
  /// Numbers of its allocation and free among the recorded events, from 0. -1: it was allocated
  /// before them; INT64_MAX: it was not freed.
  int64_t begin = -1, end = INT64_MAX;
};

/// Blocks in the order of their allocation.
struct MemoryBlocks {
  struct Phase {
    int64_t begin;  ///< its first event
    std::string name;
  };
  std::vector<MemoryBlock> blocks = {};
  std::vector<Phase> phases = {};
  int64_t events = 0;  ///< allocations and frees
};

/// RAII: records the blocks of a device from construction to scope exit; make it before the tensors
/// that it is to name. A device has one at a time.
class ZG_API BlockRecord {
 public:
  /// Later allocations than the first `most` are not recorded.
  explicit BlockRecord(const Device& device, size_t most = 1 << 17);
  ~BlockRecord();
  BlockRecord(const BlockRecord&) = delete;
  BlockRecord& operator=(const BlockRecord&) = delete;

  void restart();  ///< forgets the events, and the blocks that are freed
  MemoryBlocks recorded() const;

 private:
  friend class Ledger;
  void allocate(MemoryBlock block);
  void release(int64_t offset);
  void begin_phase(const std::string& name);

  const Device device_;
  const size_t most_;
  mutable std::mutex mutex_;
  MemoryBlocks recorded_;
  std::map<int64_t, size_t> live_;  // index in recorded_.blocks by offset
};

}  // namespace zg
