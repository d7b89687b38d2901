#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "zerograd/runtime/backend.h"

namespace zg {

/// Allocates blocks in one contiguous address range. A new block is put at the end of the smallest
/// free block that is large enough; among free blocks of equal size, of the one with the highest
/// address. So the layout depends on the calls alone. If no free block is large enough, the new
/// block begins at the top, which is the end of the highest block in use. The top moves down when
/// the highest block is freed. Memory is taken from the system in steps of `grow_bytes` and never
/// returned, so each page is faulted in once. An arena without memory computes the same offsets.
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

  /// Null: an arena without memory.
  std::byte* base() const { return memory_ ? memory_->base() : nullptr; }
  /// The end of the highest live block, rounded up to grow_bytes: the memory that is needed now.
  int64_t reserved() const { return in_steps(top_); }

 private:
  static int64_t in_steps(int64_t bytes) {
    return (bytes + grow_bytes - 1) / grow_bytes * grow_bytes;
  }
  void insert_free(int64_t offset, int64_t bytes);
  void erase_free(int64_t offset, int64_t bytes);

  std::unique_ptr<ArenaMemory> memory_;
  int64_t held_ = 0, top_ = 0;                          // held_: bytes taken from the system
  std::set<std::pair<int64_t, int64_t>> free_by_size_;  // (bytes, offset)
  std::map<int64_t, int64_t> free_by_offset_;           // offset -> bytes
};

}  // namespace zg
