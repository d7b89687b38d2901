#include "zerograd/zero/states/activations.h"

#include <string>
#include <utility>

#include "zerograd/zero/states/transfer.h"

namespace zg::zero {
namespace {

/// The unit or the op that is under way.
std::string traced_name(const Stream& stream) {
  return stream.trace() ? stream.device().memory().name() : std::string();
}

}  // namespace

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
  traced_copy(tensor, kept, "activation of ", traced_name(stream));
  known = {tensor.buffer(), kept.buffer()};
  return kept;
}

Tensor OffloadedActivations::fetch(const Tensor& kept, Stream& stream) {
  if (kept.numel() == 0) return kept;
  const PurposeScope purpose(kept.device(), Purpose::activation);
  const Tensor fetched = Tensor::empty(kept.shape(), kept.dtype(), kept.device());
  traced_copy(kept, fetched, "activation of ", traced_name(stream));
  return fetched;
}

}  // namespace zg::zero
