#pragma once

#include <cstdint>

namespace zg::models {

/// A shuffled order of 0 .. n-1 that belongs to (seed, purpose, index) and takes no memory: a
/// Feistel network of eight rounds over pairs of digits, walked until it lands below n. Black and
/// Rogaway 2002, "Ciphers with arbitrary finite domains", section 5.
class Permutation {
 public:
  /// n from 1 to 2^62; index below 2^32.
  Permutation(uint64_t seed, const char* purpose, uint64_t index, int64_t n);

  int64_t operator()(int64_t place) const;

 private:
  uint64_t seed_;
  uint32_t purpose_, index_;
  uint64_t n_, high_ = 1, low_ = 1;  // digits of a place: below high_ and below low_
};

}  // namespace zg::models
