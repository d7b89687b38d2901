#include "zerograd/zero/checkpoint/piece_sequence.h"

#include <algorithm>
#include <utility>

namespace zg::zero {
namespace {

constexpr int64_t buffer_elements = int64_t{1} << 18;

}  // namespace

PieceSequence::PieceSequence(std::vector<const Manifest::Piece*> pieces, Open open, Check check)
    : pieces_(std::move(pieces)), open_(std::move(open)), check_(std::move(check)) {}

std::span<const float> PieceSequence::next(int64_t most) {
  if (taken_ == buffer_.size()) fill();
  const auto count = std::min(buffer_.size() - taken_, static_cast<size_t>(most));
  const std::span<const float> values = std::span(buffer_).subspan(taken_, count);
  taken_ += count;
  return values;
}

void PieceSequence::fill() {
  const Manifest::Piece& piece = *pieces_[piece_];
  if (!checksum_) checksum_ = std::make_unique<Checksum>();
  const int64_t count = std::min(buffer_elements, piece.shape.numel() - read_);
  buffer_.clear();
  taken_ = 0;
  open_(piece).for_floats(piece.name(), read_, count, [&](std::span<const float> values) {
    checksum_->update(std::as_bytes(values));
    buffer_.insert(buffer_.end(), values.begin(), values.end());
  });
  read_ += count;
  if (read_ < piece.shape.numel()) return;
  check_(piece, checksum_->hex());
  checksum_.reset();
  read_ = 0;
  ++piece_;
}

}  // namespace zg::zero
