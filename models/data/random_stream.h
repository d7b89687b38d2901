#pragma once

#include <cstdint>

#include "zerograd/runtime/random.h"

namespace zg::models {

/// An endless stream of random numbers that is a function of (seed, purpose, index). So sample 7 of
/// a data set, or token 7 of a generation, does not depend on the samples or tokens before it.
class RandomStream {
 public:
  RandomStream(uint64_t seed, const char* purpose, uint64_t index)
      : seed_(seed), index_(index), purpose_(static_cast<uint32_t>(hash_name(purpose))) {}

  uint64_t word() {
    if (used_ == 2) {
      block_ = Philox::block(
          {blocks_++, static_cast<uint32_t>(index_), static_cast<uint32_t>(index_ >> 32), purpose_},
          seed_);
      used_ = 0;
    }
    const int first = 2 * used_++;
    return block_[first] | uint64_t{block_[first + 1]} << 32;
  }

  /// Uniform in [0, n), with a bias of at most n / 2^64.
  int64_t below(int64_t n) { return static_cast<int64_t>(word() % static_cast<uint64_t>(n)); }

  /// Uniform in [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(word() >> 11) * 0x1p-53; }

 private:
  uint64_t seed_, index_;
  uint32_t purpose_, blocks_ = 0;
  Philox::Block block_{};
  int used_ = 2;
};

}  // namespace zg::models
