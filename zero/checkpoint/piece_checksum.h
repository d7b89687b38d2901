#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/storage/checksum.h"

namespace zg::zero {

/// Elements of a checkpoint piece that share a checksum. A reader that needs a range of a long
/// piece reads and verifies only the blocks of that range.
inline constexpr int64_t block_elements = int64_t{1} << 20;

/// Computes the checksum of a piece as its floats arrive. A piece of more than one block also gets
/// a checksum for each block.
class PieceChecksum {
 public:
  void update(std::span<const float> values);
  std::string hex() const { return whole_.hex(); }
  std::vector<std::string> blocks();  ///< empty: one block; call once, at the end

 private:
  Checksum whole_;
  std::vector<std::string> blocks_;                                 // completed blocks
  std::unique_ptr<Checksum> block_ = std::make_unique<Checksum>();  // the block being filled
  int64_t filled_ = 0;
};

}  // namespace zg::zero
