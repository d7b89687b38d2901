#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "zerograd/runtime/backend.h"

namespace zg {

/// Allocates blocks in one contiguous address range: the smallest free block that is large enough,
/// the lowest among equal ones. So the layout depends on the calls alone. If no free block is large
/// enough, the block goes to the top, the end of the highest block; the top moves down when that
/// block is freed. Memory is taken from the system in steps of `grow_bytes` and never returned, so
/// each page is faulted in once. An arena without memory computes the same offsets.
class Arena {
 public:
  static constexpr int64_t grow_bytes = int64_t{2} << 20;  // a huge page

  /// `memory` backs the arena and grows with it; null: offsets without memory.
  explicit Arena(std::unique_ptr<ArenaMemory> memory = nullptr);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// The value that reserved() would have after allocate(bytes).
  int64_t reserved_after(int64_t bytes) const;
  int64_t allocate(int64_t bytes);  ///< bytes: a multiple of arena_granule; returns the offset
  void release(int64_t offset, int64_t bytes);

  std::byte* base() const {
    return memory_ ? memory_->base() : nullptr;
  }  ///< null: an arena without memory
  /// The end of the highest live block, rounded up to grow_bytes: the memory that is needed now.
  int64_t reserved() const { return in_steps(top_); }

 private:
  static int64_t in_steps(int64_t bytes) {
    return (bytes + grow_bytes - 1) / grow_bytes * grow_bytes;
  }
  void insert_free(int64_t offset, int64_t bytes);
  void erase_free(int64_t offset, int64_t bytes);

  std::unique_ptr<ArenaMemory> memory_;
  int64_t held_ = 0, top_ = 0;                          // held_: taken from the system
  std::set<std::pair<int64_t, int64_t>> free_by_size_;  // (bytes, offset)
  std::map<int64_t, int64_t> free_by_offset_;           // offset -> bytes
};

}  // namespace zg
