#pragma once

#include <memory>

#include "zerograd/runtime/tensor.h"

namespace zg::zero {

/// A tensor in the memory of `place` whose buffer counts its own users, so that a tape that is the
/// only one may add in place: `loan` expires with the last of them.
Tensor lend(const Tensor& place, const Shape& shape, std::weak_ptr<Buffer>& loan);

}  // namespace zg::zero
