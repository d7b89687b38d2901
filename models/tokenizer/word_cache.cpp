#include "zerograd/models/tokenizer/word_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <utility>

namespace zg::models {
namespace {

constexpr size_t longest_word = 64;      // bytes
constexpr size_t first_places = 1 << 8;  // powers of two
constexpr size_t most_places = 1 << 19;

}  // namespace

WordCache::WordCache() : entries_(first_places) {}

WordCache::Key WordCache::key_of(std::string_view word) {
  return {word, XXH3_64bits(word.data(), word.size())};
}

size_t WordCache::place_of(const Key& key) const {
  size_t place = key.hash & (entries_.size() - 1);
  for (;; place = (place + 1) & (entries_.size() - 1)) {
    const Entry& entry = entries_[place];
    if (!entry.word ||
        (entry.hash == key.hash && std::string_view(entry.word, entry.bytes) == key.word))
      return place;
  }
}

std::span<const int32_t> WordCache::find(const Key& key) const {
  const Entry& entry = entries_[place_of(key)];
  return {tokens_.data() + entry.begin, entry.count};
}

void WordCache::add(const Key& key, std::span<const int32_t> tokens) {
  if (key.word.size() > longest_word || 2 * used_ >= most_places) return;
  if (2 * ++used_ > entries_.size()) grow();
  entries_[place_of(key)] = {.hash = key.hash,
                             .word = key.word.data(),
                             .bytes = static_cast<uint32_t>(key.word.size()),
                             .count = static_cast<uint32_t>(tokens.size()),
                             .begin = static_cast<uint32_t>(tokens_.size())};
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void WordCache::grow() {
  const std::vector<Entry> old = std::exchange(entries_, std::vector<Entry>(4 * entries_.size()));
  for (const Entry& entry : old)
    if (entry.word) entries_[place_of({{entry.word, entry.bytes}, entry.hash})] = entry;
}

}  // namespace zg::models
