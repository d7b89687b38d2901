#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "zerograd/models/tokenizer/tokenizer.h"

namespace zg::models {

/// Memory that apply() reuses from word to word.
struct MergeScratch {
  std::vector<int32_t> ranks, previous, next;
  std::vector<uint64_t> queue;
};

/// Applies merges in the order of their ranks. Of all pairs in a word that have a merge, the one of
/// the lowest rank is merged first, and of equal ranks the leftmost (Sennrich 2016,
/// arXiv:1508.07909).
class MergeTable {
 public:
  explicit MergeTable(std::span<const Merge> by_rank);

  /// Merges `tokens` of one word until no pair has a merge.
  void apply(std::vector<int32_t>& tokens, MergeScratch& scratch) const;

 private:
  static constexpr int32_t none = std::numeric_limits<int32_t>::max();
  struct Entry {
    uint64_t pair = ~uint64_t{0};
    int32_t rank = none;
  };

  size_t place_of(uint64_t pair) const;
  int32_t rank(int32_t left, int32_t right) const;
  void apply_to_short(std::vector<int32_t>& tokens, MergeScratch& scratch) const;
  void apply_to_long(std::vector<int32_t>& tokens, MergeScratch& scratch) const;

  std::vector<Entry> entries_;    // hash table with linear probing
  std::vector<int32_t> results_;  // by rank
  int shift_ = 0;
};

/// Caches the tokens of words, because most words of a text repeat. Keeps references to the words'
/// bytes, which must outlive it.
class WordCache {
 public:
  WordCache();

  struct Key {
    std::string_view word;
    uint64_t hash = 0;
  };
  static Key key_of(std::string_view word);
  /// Returns the tokens of a word; empty: not cached. Valid until the next add().
  std::span<const int32_t> find(const Key& key) const;
  /// Adds a word that find() does not know. Long words are not cached, and no words are added when
  /// the cache is full.
  void add(const Key& key, std::span<const int32_t> tokens);

 private:
  struct Entry {
    uint64_t hash = 0;
    const char* word = nullptr;
    uint32_t bytes = 0, count = 0;
    uint32_t begin = 0;  // index in tokens_
  };
  size_t place_of(const Key& key) const;
  void grow();

  std::vector<Entry> entries_;  // hash table with linear probing
  std::vector<int32_t> tokens_;
  size_t used_ = 0;
};

}  // namespace zg::models
