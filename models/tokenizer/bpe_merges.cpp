#include "zerograd/models/tokenizer/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

// For words up to this length, scanning every pair for each merge is faster than a heap.
constexpr size_t short_word = 48;

uint64_t key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t hash(uint64_t pair) { return pair * 0x9e3779b97f4a7c15; }

}  // namespace

MergeTable::MergeTable(std::span<const Merge> by_rank) {
  const size_t places = std::bit_ceil(2 * by_rank.size() + 2);
  shift_ = 64 - std::countr_zero(places);
  entries_.resize(places);
  for (size_t i = 0; i < by_rank.size(); ++i) {
    const Merge& merge = by_rank[i];
    // If a pair occurs twice, the last merge is used, as in Hugging Face's map.
    const uint64_t pair = key(merge.left, merge.right);
    entries_[place_of(pair)] = {pair, static_cast<int32_t>(i)};
    results_.push_back(merge.result);
  }
}

size_t MergeTable::place_of(uint64_t pair) const {
  size_t place = hash(pair) >> shift_;
  while (entries_[place].pair != pair && entries_[place].rank != none)
    place = (place + 1) & (entries_.size() - 1);
  return place;
}

int32_t MergeTable::rank(int32_t left, int32_t right) const {
  return entries_[place_of(key(left, right))].rank;
}

void MergeTable::apply(std::vector<int32_t>& tokens, MergeScratch& scratch) const {
  if (tokens.size() < 2) return;
  if (tokens.size() >= static_cast<size_t>(none))
    raise<ConfigError>(
        "tokenizer: a word of {} tokens; expected fewer than 2^31; try a text in several documents",
        tokens.size());
  if (tokens.size() <= short_word)
    apply_to_short(tokens, scratch);
  else
    apply_to_long(tokens, scratch);
}

void MergeTable::apply_to_short(std::vector<int32_t>& tokens, MergeScratch& scratch) const {
  std::vector<int32_t>& ranks = scratch.ranks;  // rank of the pair that begins at each token
  size_t size = tokens.size();
  ranks.resize(size - 1);
  for (size_t i = 0; i + 1 < size; ++i) ranks[i] = rank(tokens[i], tokens[i + 1]);
  while (size > 1) {
    const auto end = ranks.begin() + static_cast<ptrdiff_t>(size) - 1;
    const auto lowest = std::min_element(ranks.begin(), end);
    if (*lowest == none) break;
    const auto i = static_cast<size_t>(lowest - ranks.begin());
    tokens[i] = results_[static_cast<size_t>(*lowest)];
    std::copy(tokens.begin() + static_cast<ptrdiff_t>(i) + 2,
              tokens.begin() + static_cast<ptrdiff_t>(size),
              tokens.begin() + static_cast<ptrdiff_t>(i) + 1);
    std::copy(lowest + 1, end, lowest);
    --size;
    if (i > 0) ranks[i - 1] = rank(tokens[i - 1], tokens[i]);
    if (i + 1 < size) ranks[i] = rank(tokens[i], tokens[i + 1]);
  }
  tokens.resize(size);
}

// A heap of (rank, index) over a linked list of tokens. An entry is outdated if its rank differs
// from the rank of the pair that is now at its index.
void MergeTable::apply_to_long(std::vector<int32_t>& tokens, MergeScratch& scratch) const {
  const auto size = static_cast<int32_t>(tokens.size());
  std::vector<int32_t>&ranks = scratch.ranks, &previous = scratch.previous, &next = scratch.next;
  std::vector<uint64_t>& queue = scratch.queue;
  ranks.assign(tokens.size(), none);
  previous.resize(tokens.size());
  next.resize(tokens.size());
  queue.clear();
  const auto at = [](int32_t place) { return static_cast<size_t>(place); };
  const auto look_at = [&](int32_t place) {
    const int32_t right = next[at(place)];
    const int32_t found = right < size ? rank(tokens[at(place)], tokens[at(right)]) : none;
    ranks[at(place)] = found;
    if (found == none) return false;
    queue.push_back(key(found, place));
    return true;
  };
  for (int32_t i = 0; i < size; ++i) {
    previous[at(i)] = i - 1;
    next[at(i)] = i + 1;
  }
  for (int32_t i = 0; i < size; ++i) look_at(i);
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const auto place = static_cast<int32_t>(queue.back() & 0xffffffff);
    const auto lowest = static_cast<int32_t>(queue.back() >> 32);
    queue.pop_back();
    if (ranks[at(place)] != lowest) continue;
    const int32_t gone = next[at(place)];
    tokens[at(place)] = results_[at(lowest)];
    ranks[at(gone)] = none;
    next[at(place)] = next[at(gone)];
    if (next[at(place)] < size) previous[at(next[at(place)])] = place;
    if (look_at(place)) std::push_heap(queue.begin(), queue.end(), std::greater<>());
    if (place > 0 && look_at(previous[at(place)]))
      std::push_heap(queue.begin(), queue.end(), std::greater<>());
  }
  size_t kept = 0;
  for (int32_t i = 0; i < size; i = next[at(i)]) tokens[kept++] = tokens[at(i)];
  tokens.resize(kept);
}

namespace {

constexpr size_t longest_word = 64;      // bytes
constexpr size_t first_places = 1 << 8;  // powers of two
constexpr size_t max_slots = 1 << 19;

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
  if (key.word.size() > longest_word || 2 * used_ >= max_slots) return;
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
