#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace zg::models {

/// The tokens of words that a text has had: most of its words come again. Keeps references to the
/// words' bytes, which have to outlive it.
class WordCache {
 public:
  WordCache();

  struct Key {
    std::string_view word;
    uint64_t hash = 0;
  };
  static Key key_of(std::string_view word);
  /// Empty: not known. Valid until the next add().
  std::span<const int32_t> find(const Key& key) const;
  /// Of a word that find() does not know. Long words, and those beyond the cache's size, are not
  /// kept.
  void add(const Key& key, std::span<const int32_t> tokens);

 private:
  struct Entry {
    uint64_t hash = 0;
    const char* word = nullptr;
    uint32_t bytes = 0, count = 0;
    uint32_t begin = 0;  // in tokens_
  };
  size_t place_of(const Key& key) const;
  void grow();

  std::vector<Entry> entries_;  // hashed, the next free place after a collision
  std::vector<int32_t> tokens_;
  size_t used_ = 0;
};

}  // namespace zg::models
