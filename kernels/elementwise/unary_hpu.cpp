#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/hpu/launch.h"

namespace zg::hpu {
namespace {

/// In the order of UnaryOp.
constexpr const char* values[] = {"unary_negate", "unary_exp",       "unary_log",  "unary_sqrt",
                                  "unary_tanh",   "unary_sigmoid",   "unary_relu", "unary_silu",
                                  "unary_abs",    "unary_reciprocal"};
constexpr const char* slopes[] = {"slope_negate", "slope_exp",       "slope_log",  "slope_sqrt",
                                  "slope_tanh",   "slope_sigmoid",   "slope_relu", "slope_silu",
                                  "slope_abs",    "slope_reciprocal"};

}  // namespace

void unary(const Unary& a, Workspace, Stream& stream) {
  const int64_t n = a.x.numel();
  launch(stream, module("unary", a.x.dtype()), values[static_cast<size_t>(a.op)], {groups_for(n)},
         a.x.raw(), a.y.raw(), n);
}

void unary_backward(const UnaryBackward& a, Workspace, Stream& stream) {
  const Tensor& known = reads_result(a.op) ? a.y : a.x;
  const int64_t n = a.dy.numel();
  launch(stream, module("unary", a.dy.dtype()), slopes[static_cast<size_t>(a.op)], {groups_for(n)},
         known.raw(), a.dy.raw(), a.dx.raw(), n);
}

}  // namespace zg::hpu
