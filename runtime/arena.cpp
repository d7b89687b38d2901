#include "runtime/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/error.h"

namespace zg {
namespace {

// Address space costs nothing until it is touched; four times the machine's memory leaves room for
// whatever can run here and keeps the arena one contiguous range, so freed neighbours always merge.
int64_t address_space_bytes() {
  const int64_t physical =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  return std::max<int64_t>(physical * 4, Arena::grow_bytes) / Arena::grow_bytes * Arena::grow_bytes;
}

}  // namespace

Arena::Arena(bool backed) {
  if (!backed) return;
  capacity_ = address_space_bytes();
  void* start = mmap(nullptr, static_cast<size_t>(capacity_ + grow_bytes), PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED)
    throw DeviceError("arena: cannot reserve " + std::to_string(capacity_) +
                      " bytes of address space: " + std::strerror(errno) +
                      "; raise the limit shown by `ulimit -v`");
  // Huge pages need a 2 MiB boundary.
  const auto address = reinterpret_cast<uintptr_t>(start);
  const auto aligned = (address + static_cast<uintptr_t>(grow_bytes) - 1) /
                       static_cast<uintptr_t>(grow_bytes) * static_cast<uintptr_t>(grow_bytes);
  base_ = reinterpret_cast<std::byte*>(aligned);
  if (aligned > address) munmap(start, aligned - address);
  const uintptr_t tail = address + static_cast<uintptr_t>(grow_bytes) - aligned;
  if (tail > 0) munmap(base_ + capacity_, tail);
  madvise(base_, static_cast<size_t>(capacity_), MADV_HUGEPAGE);  // a refusal only costs speed
}

Arena::~Arena() {
  if (base_) munmap(base_, static_cast<size_t>(capacity_));
}

int64_t Arena::reserved_after(int64_t bytes) const {
  const bool fits = free_by_size_.lower_bound({bytes, 0}) != free_by_size_.end();
  return in_steps(fits ? top_ : top_ + bytes);
}

int64_t Arena::allocate(int64_t bytes) {
  const auto fit = free_by_size_.lower_bound({bytes, 0});
  if (fit != free_by_size_.end()) {
    const auto [size, offset] = *fit;
    erase_free(offset, size);
    if (size > bytes) insert_free(offset + bytes, size - bytes);
    return offset;
  }
  if (const int64_t needed = in_steps(top_ + bytes); needed > held_) {
    if (base_ && (needed > capacity_ || mprotect(base_ + held_, static_cast<size_t>(needed - held_),
                                                 PROT_READ | PROT_WRITE) != 0))
      throw OutOfMemory("arena: the system refused to grow from " + std::to_string(held_) + " to " +
                        std::to_string(needed) + " bytes");
    held_ = needed;
  }
  return std::exchange(top_, top_ + bytes);
}

void Arena::release(int64_t offset, int64_t bytes) {
  auto next = free_by_offset_.lower_bound(offset);
  if (next != free_by_offset_.end() && next->first == offset + bytes) {
    bytes += next->second;
    erase_free(next->first, next->second);
    next = free_by_offset_.lower_bound(offset);
  }
  if (next != free_by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      erase_free(previous->first, previous->second);
    }
  }
  if (offset + bytes == top_)
    top_ = offset;  // no hole ever touches the top
  else
    insert_free(offset, bytes);
}

void Arena::insert_free(int64_t offset, int64_t bytes) {
  free_by_size_.insert({bytes, offset});
  free_by_offset_.insert({offset, bytes});
}

void Arena::erase_free(int64_t offset, int64_t bytes) {
  free_by_size_.erase({bytes, offset});
  free_by_offset_.erase(offset);
}

}  // namespace zg
