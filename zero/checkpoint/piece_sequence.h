#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/zero/checkpoint/manifest.h"
#include "zerograd/zero/checkpoint/piece_checksum.h"

namespace zg::zero {

/// The elements of one part of a parameter in order, from the pieces that tile it, through a
/// buffer: parts that lie in turns in the whole are read side by side.
class PieceSequence {
 public:
  using Open = std::function<const SafetensorsReader&(const Manifest::Piece&)>;
  /// Called with a piece that was read to its end, and the checksum of what was read.
  using Check = std::function<void(const Manifest::Piece&, const std::string& checksum)>;
  PieceSequence(std::vector<const Manifest::Piece*> pieces, Open open, Check check);

  /// The next elements, `most` of them or fewer, one at least: there are as many.
  std::span<const float> next(int64_t most);

 private:
  void fill();

  std::vector<const Manifest::Piece*> pieces_;
  Open open_;
  Check check_;
  size_t piece_ = 0;                    // index of the piece that is read next
  int64_t read_ = 0;                    // elements read from that piece so far
  std::unique_ptr<Checksum> checksum_;  // checksum of those elements
  std::vector<float> buffer_;
  size_t taken_ = 0;
};

}  // namespace zg::zero
