#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace zg {

/// Hands out ranges of one contiguous address range, best fit by (size, offset), so the layout is
/// a function of the calls alone. It grows at the top in steps of `grow_bytes` and keeps what it
/// has: no page is faulted twice. An unbacked arena does the same arithmetic without storage.
class Arena {
 public:
  static constexpr int64_t grow_bytes = int64_t{2} << 20;  // a huge page

  /// backed: reserves address space now, and takes memory from the system as it grows.
  explicit Arena(bool backed);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// What reserved() would be after allocate(bytes).
  int64_t reserved_after(int64_t bytes) const;
  int64_t allocate(int64_t bytes);  ///< bytes: a multiple of arena_granule; returns the offset
  void release(int64_t offset, int64_t bytes);

  std::byte* base() const { return base_; }  ///< null when unbacked
  int64_t reserved() const { return reserved_; }

 private:
  int64_t top_after(int64_t bytes) const;
  void insert_free(int64_t offset, int64_t bytes);
  void erase_free(int64_t offset, int64_t bytes);

  std::byte* base_ = nullptr;
  int64_t capacity_ = 0, reserved_ = 0, top_ = 0;
  std::set<std::pair<int64_t, int64_t>> free_by_size_;  // (bytes, offset)
  std::map<int64_t, int64_t> free_by_offset_;           // offset -> bytes
};

}  // namespace zg
