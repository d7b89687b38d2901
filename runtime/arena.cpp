#include "zerograd/runtime/arena.h"

#include <iterator>
#include <limits>

#include "zerograd/runtime/cpu/poison.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {
constexpr int64_t max_offset = std::numeric_limits<int64_t>::max();
}

Arena::Arena(std::unique_ptr<ArenaMemory> memory) : memory_(std::move(memory)) {}

Arena::~Arena() { unpoison(base(), held_); }

int64_t Arena::reserved_after(int64_t bytes) const {
  const bool fits = free_by_size_.lower_bound({bytes, 0}) != free_by_size_.end();
  return in_steps(fits ? top_ : top_ + bytes);
}

int64_t Arena::allocate(int64_t bytes) {
  const auto fit = free_by_size_.lower_bound({bytes, 0});
  if (fit != free_by_size_.end()) {
    const auto [size, offset] = *std::prev(free_by_size_.upper_bound({fit->first, max_offset}));
    erase_free(offset, size);
    if (size > bytes) insert_free(offset, size - bytes);
    return offset + size - bytes;
  }
  if (const int64_t needed = in_steps(top_ + bytes); needed > held_) {
    if (memory_ && (needed > memory_->capacity() || !memory_->grow(held_, needed)))
      raise<OutOfMemory>("arena: the system refused to grow from {} to {} bytes{}", held_, needed,
                         memory_->cause());
    if (memory_) poison(base() + held_, needed - held_);
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
    top_ = offset;  // a free block at the top is never kept: the top moves down instead
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
