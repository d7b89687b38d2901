#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/storage/checksum.h"

namespace zg::zero {

/// Elements of a piece of a checkpoint with a checksum of their own, so that whoever needs a part
/// of a long piece reads and verifies that part.
inline constexpr int64_t block_elements = int64_t{1} << 20;

/// Of a piece as its floats come: of all of it, and of its blocks where it has several.
class PieceChecksum {
 public:
  void update(std::span<const float> values);
  std::string hex() const { return whole_.hex(); }
  std::vector<std::string> blocks();  ///< empty: one block; once, at the end

 private:
  Checksum whole_;
  std::vector<std::string> blocks_;                                 // whole ones
  std::unique_ptr<Checksum> block_ = std::make_unique<Checksum>();  // being filled
  int64_t filled_ = 0;
};

}  // namespace zg::zero
