#include "zerograd/zero/states/loan.h"

#include <utility>

namespace zg::zero {

Tensor lend(const Tensor& place, const Shape& shape, std::weak_ptr<Buffer>& loan) {
  std::shared_ptr<Buffer> buffer(place.buffer().get(),
                                 [owner = place.buffer()](Buffer*) mutable { owner.reset(); });
  loan = buffer;
  return Tensor::of(std::move(buffer), place.byte_offset(), shape, place.dtype());
}

}  // namespace zg::zero
