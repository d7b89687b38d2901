#pragma once

#include "zerograd/kernels/cuda/tile.cuh"

namespace zg::cuda {

/// Calls f with a zero of the C++ type of a floating dtype, or of an index dtype.
template <class F>
void visit_number(DType dtype, const F& f) {
  dtype == DType::i32 || dtype == DType::i64 ? visit_index(dtype, f) : visit_floating(dtype, f);
}

}  // namespace zg::cuda
