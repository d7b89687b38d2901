#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "zerograd/autograd/tape.h"

namespace zg::zero {

/// Keeps what a tape needs for backward in another space than the device's. Two ops that keep the
/// same bytes share one copy; each backward that reads them has its own on the device for as long
/// as it runs.
class OffloadedActivations final : public ActivationStore {
 public:
  explicit OffloadedActivations(Space space) : space_(space) {}

  Tensor keep(const Tensor& tensor, Stream& stream) override;
  Tensor fetch(const Tensor& kept, Stream& stream) override;

 private:
  /// Bytes on the device and where they went; expired once either is gone.
  struct Copy {
    std::weak_ptr<Buffer> from, to;
  };
  using Placement = std::tuple<const Buffer*, int64_t, int64_t>;  // buffer, byte offset, bytes

  const Space space_;
  std::map<Placement, Copy> copies_;
};

}  // namespace zg::zero
