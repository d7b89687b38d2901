#include "zero/activations.h"

#include <utility>

namespace zg::zero {

Tensor OffloadedActivations::keep(const Tensor& tensor, Stream& stream) {
  if (tensor.numel() == 0) return tensor;
  std::erase_if(copies_, [](const auto& entry) {
    return entry.second.from.expired() || entry.second.to.expired();
  });
  Copy& known = copies_[{tensor.buffer().get(), tensor.byte_offset(), tensor.bytes()}];
  if (std::shared_ptr<Buffer> shared = known.to.lock())
    return Tensor::of(std::move(shared), 0, tensor.shape(), tensor.dtype());
  const PurposeScope purpose(tensor.device(), Purpose::activation);
  const Space space = space_ == Space::host ? host_space(tensor.device()) : space_;
  Tensor kept = Tensor::empty(tensor.shape(), tensor.dtype(), tensor.device(), space);
  copy(tensor, kept, stream);
  known = {tensor.buffer(), kept.buffer()};
  return kept;
}

Tensor OffloadedActivations::fetch(const Tensor& kept, Stream& stream) {
  if (kept.numel() == 0) return kept;
  const PurposeScope purpose(kept.device(), Purpose::activation);
  const Tensor fetched = Tensor::empty(kept.shape(), kept.dtype(), kept.device());
  copy(kept, fetched, stream);
  return fetched;
}

}  // namespace zg::zero
