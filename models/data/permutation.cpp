#include "zerograd/models/data/permutation.h"

#include <cmath>

#include "zerograd/runtime/random.h"

namespace zg::models {

Permutation::Permutation(uint64_t seed, const char* purpose, uint64_t index, int64_t n)
    : seed_(seed),
      purpose_(static_cast<uint32_t>(hash_name(purpose))),
      index_(static_cast<uint32_t>(index)),
      n_(static_cast<uint64_t>(n)) {
  // The least pair of digits that covers n: fewer than sqrt(n) + 1 places lie beyond.
  high_ = static_cast<uint64_t>(std::sqrt(static_cast<double>(n)));
  while (high_ * high_ < n_) ++high_;
  low_ = (n_ + high_ - 1) / high_;
}

int64_t Permutation::operator()(int64_t place) const {
  const auto word = [&](uint32_t round, uint64_t digit) {
    const Philox::Block block =
        Philox::block({static_cast<uint32_t>(digit), index_, round, purpose_}, seed_);
    return block[0] | uint64_t{block[1]} << 32;
  };
  auto walked = static_cast<uint64_t>(place);
  do {
    uint64_t high = walked / low_, low = walked % low_;
    for (uint32_t round = 0; round < 8; round += 2) {
      high = (high + word(round, low) % high_) % high_;
      low = (low + word(round + 1, high) % low_) % low_;
    }
    walked = high * low_ + low;
  } while (walked >= n_);
  return static_cast<int64_t>(walked);
}

}  // namespace zg::models
