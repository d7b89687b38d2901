#include "zerograd/kernels/elementwise/dropout.h"
#include "zerograd/kernels/elementwise/dropout_hpu.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/elementwise/gated.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/hpu/modules.h"
#include "zerograd/kernels/hpu/nest.h"
#include "zerograd/runtime/text/format.h"

namespace zg::hpu {
namespace {

/// In the order of UnaryOp.
constexpr const char* values[] = {
#define ZG_UNARY(name, ...) "unary_" #name,
#include "zerograd/kernels/elementwise/formulas.inc"
};
constexpr const char* slopes[] = {
#define ZG_UNARY(name, ...) "slope_" #name,
#include "zerograd/kernels/elementwise/formulas.inc"
};
static_assert(std::size(values) == unary_op_count);

}  // namespace

void unary(const Unary& a, Workspace, Stream& stream) {
  const int64_t n = a.x.numel();
  launch(stream, module("unary", a.x.dtype()), values[static_cast<size_t>(a.op)], {span_groups(n)},
         a.x.raw(), a.y.raw(), n, static_cast<float>(a.p), static_cast<float>(a.q));
}

void unary_backward(const UnaryBackward& a, Workspace, Stream& stream) {
  const Tensor& known = reads_result(a.op) ? a.y : a.x;
  const int64_t n = a.dy.numel();
  launch(stream, module("unary", a.dy.dtype()), slopes[static_cast<size_t>(a.op)], {span_groups(n)},
         known.raw(), a.dy.raw(), a.dx.raw(), n, static_cast<float>(a.p), static_cast<float>(a.q));
}

namespace {

/// In the order of BinaryOp.
constexpr const char* names[] = {
#define ZG_BINARY(name, ...) #name,
#define ZG_COMPARISON(name, ...) #name,
#include "zerograd/kernels/elementwise/formulas.inc"
};

std::string kernel_of(const char* prefix, BinaryOp op) {
  return std::string(prefix) + names[static_cast<size_t>(op)];
}

template <class Args>
Nest<2> nest_of(const Args& args, const Shape& shape) {
  return {shape,
          {strides_of(args.a, args.a_strides, shape), strides_of(args.b, args.b_strides, shape)}};
}

}  // namespace

void binary(const Binary& args, Workspace, Stream& stream) {
  const Nest<2> nest = nest_of(args, args.y.shape());
  const Code code = module("binary", args.a.dtype());
  const std::string kernel = kernel_of("binary_", args.op);
  const auto run = [&](const auto&... faults) {
    launch(stream, code, kernel.c_str(), {span_groups(nest.numel)}, args.a.raw(), args.b.raw(),
           args.y.raw(), nest.numel, nest.rank, nest.extents, nest.strides[0], nest.strides[1],
           faults...);
  };
  if (divides(args.op) && !is_floating(args.a.dtype()))
    run(fault_place(stream), literal(args.op == BinaryOp::divide ? "div" : "remainder"),
        literal("divisor"));
  else
    run();
}

void binary_backward(const BinaryBackward& args, Workspace, Stream& stream) {
  const Nest<2> nest = nest_of(args, args.dy.shape());
  launch(stream, module("binary", args.a.dtype()), kernel_of("slopes_", args.op).c_str(),
         {span_groups(nest.numel)}, args.a.raw(), args.b.raw(), args.dy.raw(), args.da.raw(),
         args.db.raw(), nest.numel, nest.rank, nest.extents, nest.strides[0], nest.strides[1]);
}

void where(const Where& a, Workspace, Stream& stream) {
  const Shape& shape = a.y.shape();
  const Nest<3> nest(
      shape, {broadcast_strides(a.condition.shape(), shape), strides_of(a.a, a.a_strides, shape),
              strides_of(a.b, a.b_strides, shape)});
  const std::string kernel = fmt::format("where_{}", size_of(a.y.dtype()));
  launch(stream, module("where"), kernel.c_str(), {span_groups(nest.numel)}, a.condition.raw(),
         a.a.raw(), a.b.raw(), a.y.raw(), nest.numel, nest.rank, nest.extents, nest.strides[0],
         nest.strides[1], nest.strides[2]);
}

void cast(const Cast& a, Workspace, Stream& stream) {
  if (a.x.dtype() == a.y.dtype()) {
    if (a.x.raw() != a.y.raw() && a.x.numel() > 0)
      stream.copy(a.y.raw(), a.x.raw(), static_cast<size_t>(a.x.bytes()));
    return;
  }
  const auto known = {DType::f32, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean};
  const std::string kernel =
      fmt::format("cast_{}_{}", word("cast", a.x.dtype(), known), word("cast", a.y.dtype(), known));
  const int64_t n = a.x.numel();
  launch(stream, module("cast"), kernel.c_str(), {span_groups(n)}, a.x.raw(), a.y.raw(), n);
}

void axpby(const Axpby& args, Workspace, Stream& stream) {
  const auto known = {DType::f32, DType::bf16};
  const std::string kernel = fmt::format("axpby_{}_{}", word("axpby", args.x.dtype(), known),
                                         word("axpby", args.y.dtype(), known));
  const int64_t n = args.x.numel();
  launch(stream, module("cast"), kernel.c_str(), {span_groups(n)}, args.x.raw(), args.y.raw(), n,
         static_cast<float>(args.a), static_cast<float>(args.b));
}

void gelu_forward(const GeluForward& a, Workspace, Stream& stream) {
  const bool tanh = a.activation == Activation::gelu_tanh;
  const int64_t n = a.x.numel();
  launch(stream, module("gelu", a.x.dtype()), tanh ? "gelu_tanh_forward" : "gelu_erf_forward",
         {span_groups(n)}, a.x.raw(), a.y.raw(), n);
}

void gelu_backward(const GeluBackward& a, Workspace, Stream& stream) {
  const bool tanh = a.activation == Activation::gelu_tanh;
  const int64_t n = a.x.numel();
  launch(stream, module("gelu", a.x.dtype()), tanh ? "gelu_tanh_backward" : "gelu_erf_backward",
         {span_groups(n)}, a.dy.raw(), a.x.raw(), a.dx.raw(), a.y.raw(), n);
}

void gated_forward(const GatedForward& a, Workspace, Stream& stream) {
  const int64_t n = a.gate.numel();
  const std::string kernel = std::string(name_of(a.form)) + "_forward";
  launch(stream, module("gated", a.gate.dtype()), kernel.c_str(), {span_groups(n)}, a.gate.raw(),
         a.up.raw(), a.y.raw(), n);
}

void gated_backward(const GatedBackward& a, Workspace, Stream& stream) {
  const int64_t n = a.gate.numel();
  const std::string kernel = std::string(name_of(a.form)) + "_backward";
  launch(stream, module("gated", a.gate.dtype()), kernel.c_str(), {span_groups(n)}, a.dy.raw(),
         a.gate.raw(), a.up.raw(), a.dgate.raw(), a.dup.raw(), n);
}

void dropout(const Dropout& a, Workspace, Stream& stream) {
  const int64_t samples = a.x.extent(0);
  if (a.x.numel() == 0) return;
  const int64_t elements = a.x.numel() / samples;
  const DropoutSlice slice = dropout_slice("dropout", a.probability, a.x.shape(), a.key);
  launch(stream, module("dropout", a.x.dtype()), "dropout",
         {.x = span_groups(elements), .y = samples}, a.x.raw(), a.residual.raw(), a.y.raw(),
         elements, slice.first, slice.row, slice.whole_row,
         static_cast<int32_t>(slice.is_aligned(elements)), a.key.seed, a.key.sample, a.key.step,
         a.key.site, dropout_threshold(a.probability), dropout_scale(a.probability));
}

}  // namespace zg::hpu
