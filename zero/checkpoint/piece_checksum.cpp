#include "zerograd/zero/checkpoint/piece_checksum.h"

#include <algorithm>

namespace zg::zero {

void PieceChecksum::update(std::span<const float> values) {
  whole_.update(std::as_bytes(values));
  while (!values.empty()) {
    if (filled_ == block_elements) {
      blocks_.push_back(block_->hex());
      block_ = std::make_unique<Checksum>();
      filled_ = 0;
    }
    const auto count = std::min(values.size(), static_cast<size_t>(block_elements - filled_));
    block_->update(std::as_bytes(values.first(count)));
    filled_ += static_cast<int64_t>(count);
    values = values.subspan(count);
  }
}

std::vector<std::string> PieceChecksum::blocks() {
  if (!blocks_.empty()) blocks_.push_back(block_->hex());
  return blocks_;
}

}  // namespace zg::zero
