#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace zg::models {

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
  /// Empty: not cached. Valid until the next add().
  std::span<const int32_t> find(const Key& key) const;
  /// Adds a word that find() does not know. Long words are not cached, and no words once the cache
  /// is full.
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
