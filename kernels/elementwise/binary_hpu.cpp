#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/hpu/nest.h"

namespace zg::hpu {
namespace {

/// In the order of BinaryOp.
constexpr const char* names[] = {"add",        "subtract", "multiply",     "divide",    "power",
                                 "maximum",    "minimum",  "equal",        "not_equal", "less",
                                 "less_equal", "greater",  "greater_equal"};

std::string kernel_of(const char* prefix, BinaryOp op) {
  return std::string(prefix) + names[static_cast<size_t>(op)];
}

Nest<2> nest_of(const Tensor& a, const Tensor& b, const Shape& shape) {
  return {shape, {broadcast_strides(a.shape(), shape), broadcast_strides(b.shape(), shape)}};
}

}  // namespace

void binary(const Binary& args, Workspace, Stream& stream) {
  const Nest<2> nest = nest_of(args.a, args.b, args.y.shape());
  const Code code = module("binary", args.a.dtype());
  const std::string kernel = kernel_of("binary_", args.op);
  const auto run = [&](const auto&... faults) {
    launch(stream, code, kernel.c_str(), {groups_for(nest.numel)}, args.a.raw(), args.b.raw(),
           args.y.raw(), nest.numel, nest.rank, nest.extents, nest.strides[0], nest.strides[1],
           faults...);
  };
  if (args.op == BinaryOp::divide && !is_floating(args.a.dtype()))
    run(fault_place(stream), literal("binary"), literal("divisor"));
  else
    run();
}

void binary_backward(const BinaryBackward& args, Workspace, Stream& stream) {
  const Nest<2> nest = nest_of(args.a, args.b, args.dy.shape());
  launch(stream, module("binary", args.a.dtype()), kernel_of("slopes_", args.op).c_str(),
         {groups_for(nest.numel)}, args.a.raw(), args.b.raw(), args.dy.raw(), args.da.raw(),
         args.db.raw(), nest.numel, nest.rank, nest.extents, nest.strides[0], nest.strides[1]);
}

}  // namespace zg::hpu
