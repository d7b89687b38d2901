#pragma once

#include "zerograd/kernels/matmul/matmul.h"

namespace zg::cuda {

/// Computes the product with cuBLASLt if the library is installed and accepts it: f32, bf16 or f16,
/// rows and addresses aligned to 16 bytes. Returns false, having done nothing, otherwise. The
/// algorithm is the library's first choice for the device and shape among those that add in a fixed
/// order; it is chosen once and cached. So equal calls on one device and library version give the
/// same bits.
bool cublaslt_matmul(const Matmul&, Workspace, Stream&);

}  // namespace zg::cuda
