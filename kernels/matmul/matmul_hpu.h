#pragma once

#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/matmul/matmul.h"

namespace zg::hpu {

/// The product by the kernel of that module, which matmul.clh describes.
void multiply(const Matmul& m, const Code& code, Stream& stream);

}  // namespace zg::hpu
