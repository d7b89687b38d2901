#include "zerograd/kernels/reduce/reduce.h"

#include "zerograd/kernels/reduce/reduce_chunks.h"
#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

constexpr auto numbers = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64};

/// The shape of the result: reduced axes have extent 1 (`keep`) or are removed.
Shape reduced_shape(const Shape& shape, uint32_t axes, bool keep) {
  std::array<int64_t, Shape::max_rank> extents{};
  size_t rank = 0;
  for (int i = 0; i < shape.rank(); ++i) {
    const bool reduced = axes >> i & 1u;
    if (!reduced || keep) extents[rank++] = reduced ? 1 : shape[i];
  }
  return Shape(std::span<const int64_t>(extents.data(), rank));
}

void check_reduced(const char* op, const Tensor& x, const Tensor& y, uint32_t axes) {
  check_present(op, "y", y);
  if (axes >> x.shape().rank())
    raise<ShapeError>("{}: axes has a bit beyond the last axis of x {}; expected bits 0 to {}", op,
                      x.shape(), x.shape().rank() - 1);
  if (y.shape() != reduced_shape(x.shape(), axes, /*keep=*/true))
    check_shape(op, "y", y, reduced_shape(x.shape(), axes, /*keep=*/false));
}

void check_not_empty(const char* op, const Shape& shape, uint32_t axes) {
  for (int i = 0; i < shape.rank(); ++i)
    if ((axes >> i & 1u) && shape[i] == 0)
      raise<ShapeError>(
          "{}: axis {} of x {} is empty, so it has no largest element; expected 1 or more", op, i,
          shape);
}

void check_axis(const char* op, const Tensor& x, int axis) {
  check_dtype(op, "x", x, floating);
  if (x.shape().rank() == 0) raise<ShapeError>("{}: x has shape []; expected an axis", op);
  x.shape().axis(axis);  // throws
}

}  // namespace

void validate(const Reduce& args) {
  const char* op = "reduce";
  const DType dtype = args.x ? args.x.dtype() : DType::f32;
  if (args.op != ReduceOp::mean && (dtype == DType::i32 || dtype == DType::i64)) {
    check_dtype(op, "y", args.y, {dtype, DType::i64});
  } else {
    check_dtype(op, "x", args.x, floating);
    check_dtype(op, "y", args.y, {dtype, accumulator(dtype)});
  }
  check_reduced(op, args.x, args.y, args.axes);
  if (args.op == ReduceOp::max) check_not_empty(op, args.x.shape(), args.axes);
}

void validate(const Sort& args) {
  const char* op = "sort";
  check_dtype(op, "x", args.x, numbers);
  check_dtype(op, "y", args.y, DType::i64);
  const int axis = args.x.shape().axis(args.axis);
  const bool same_rank = args.y.shape().rank() == args.x.shape().rank();
  if (!same_rank || args.y.extent(axis) > args.x.extent(axis) ||
      args.y.shape() != args.x.shape().with(axis, args.y.extent(axis)))
    raise<ShapeError>("{}: y has shape {}; expected {} with at most {} elements along axis {}", op,
                      args.y.shape(), args.x.shape(), args.x.extent(axis), axis);
  if (args.x.extent(axis) > int64_t{1} << 32)
    raise<ShapeError>("{}: x has shape {}; expected at most 2^32 elements along axis {}", op,
                      args.x.shape(), axis);
}

void validate(const Scan& args) {
  check_dtype("scan", "x", args.x, numbers);
  check_dtype("scan", "y", args.y, args.finds_places() ? DType::i64 : args.x.dtype());
  check_shape("scan", "y", args.y, args.x.shape());
  if (args.finds_places()) check_like("scan", "values", args.values, args.x);
  args.x.shape().axis(args.axis);  // throws
}

void validate(const SoftmaxForward& args) {
  const char* op = "softmax_forward";
  check_axis(op, args.x, args.axis);
  check_like(op, "y", args.y, args.x);
}

void validate(const SoftmaxBackward& args) {
  const char* op = "softmax_backward";
  check_axis(op, args.y, args.axis);
  for (const auto& [name, tensor] : {std::pair{"dy", &args.dy}, {"dx", &args.dx}})
    check_like(op, name, *tensor, args.y);
}

namespace cpu {
int64_t workspace_bytes(const Reduce&, const Device::Traits&);
int64_t workspace_bytes(const Sort&, const Device::Traits&);
}  // namespace cpu
namespace {

int64_t chunk_bytes(const Reduce& a, const Device::Traits&) {
  return ReduceChunks(a.x.shape(), a.axes).scratch_bytes();
}
int64_t item_bytes(const Sort& a, const Device::Traits&) {
  return SortedRows(a.x.shape(), a.axis, a.y.extent(a.axis)).scratch_bytes(a.x.dtype());
}
int64_t state_bytes(const Scan& a, const Device::Traits&) {
  return ScanChunks(a.x.shape(), a.axis, a.finds_places()).scratch_bytes();
}

}  // namespace
ZG_KERNEL(Reduce, reduce, cpu::workspace_bytes, chunk_bytes, chunk_bytes)
ZG_KERNEL(Sort, sort, cpu::workspace_bytes, item_bytes, item_bytes)
ZG_KERNEL(Scan, scan, nullptr, state_bytes, state_bytes)
ZG_KERNEL(SoftmaxForward, softmax_forward)
ZG_KERNEL(SoftmaxBackward, softmax_backward)

}  // namespace zg
