#pragma once

#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/attention/rope.h"
#include "zerograd/kernels/elementwise/dropout.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/elementwise/gated.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/norm/layer_norm.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/kernels/window/window.h"

namespace zg::testing {

/// f(kernel) for each; tests/check_layers.py sees that none is missing.
template <class F>
void for_every_kernel(const F& f) {
  const auto each = [&](auto&... kernel) { (f(kernel), ...); };
  namespace k = kernels;
  each(k::optimizer_update, k::sum_of_squares, k::gradient_scale, k::attention_forward,
       k::attention_backward, k::cross_entropy_forward, k::cross_entropy_backward,
       k::projection_cross_entropy, k::dropout, k::unary, k::unary_backward, k::binary,
       k::binary_backward, k::where, k::axpby, k::cast, k::embedding_forward, k::embedding_backward,
       k::fold_gradient, k::gelu_forward, k::gelu_backward, k::gated_forward, k::gated_backward,
       k::rope, k::layer_norm_forward, k::layer_norm_backward, k::rms_norm_forward,
       k::rms_norm_backward, k::matmul, k::strided_copy, k::gather, k::scatter_add, k::reduce,
       k::sort, k::scan, k::softmax_forward, k::softmax_backward, k::window_reduce);
}

}  // namespace zg::testing
