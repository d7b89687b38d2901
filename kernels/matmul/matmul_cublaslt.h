#pragma once

#include "zerograd/kernels/matmul/matmul.h"

namespace zg::cuda {

/// The product by cuBLASLt, where it is there and takes the product: f32, bf16, f16 with rows and
/// addresses on 16 bytes. False: nothing was done, the caller multiplies. Its algorithm is the
/// library's first choice for the shape, asked once per device and shape and kept, among those
/// whose sums have one order: the same bits in every call on one device and library.
bool cublaslt_matmul(const Matmul&, Workspace, Stream&);

}  // namespace zg::cuda
