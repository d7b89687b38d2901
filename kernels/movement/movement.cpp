#include "zerograd/kernels/movement/movement.h"

#include <algorithm>

#include "zerograd/kernels/check.h"
#include "zerograd/kernels/slots.h"

namespace zg {
namespace {

void check_range(const char* name, const Tensor& tensor, const Shape& extents,
                 const Strides& strides, int64_t offset) {
  int64_t low = offset, high = offset;
  for (int i = 0; i < extents.rank(); ++i) {
    const int64_t span = (extents[i] - 1) * strides[static_cast<size_t>(i)];
    low += std::min<int64_t>(span, 0);
    high += std::max<int64_t>(span, 0);
  }
  if (extents.numel() > 0 && (low < 0 || high >= tensor.numel()))
    throw ShapeError(std::string("strided_copy: ") + name + " is reached from element " +
                     std::to_string(low) + " to " + std::to_string(high) + "; expected 0 to " +
                     std::to_string(tensor.numel() - 1) + " of " + tensor.shape().str());
}

/// ShapeError unless index, but for `axis`, fits into the tensor; axis -1: index fits in every
/// axis.
void check_fits(const char* op, const Tensor& index, const char* name, const Tensor& tensor,
                int axis) {
  bool fits = index.shape().rank() == tensor.shape().rank();
  for (int i = 0; fits && i < index.shape().rank(); ++i)
    fits = i == axis || index.extent(i) <= tensor.extent(i);
  if (!fits)
    throw ShapeError(std::string(op) + ": index has shape " + index.shape().str() +
                     "; expected at most " + name + "'s " + tensor.shape().str() +
                     (axis < 0 ? "" : " but for axis " + std::to_string(axis)));
}

void check_indexed(const char* op, const Tensor& index, const Tensor& x, const Tensor& y) {
  check_present(op, "x", x);
  check_dtype(op, "index", index, {DType::i32, DType::i64});
  check_dtype(op, "y", y, x.dtype());
  check_device(op, {&index, &x, &y});
}

}  // namespace

void validate(const StridedCopy& args) {
  const char* op = "strided_copy";
  check_present(op, "x", args.x);
  check_dtype(op, "y", args.y, args.x.dtype());
  check_range("x", args.x, args.extents, args.x_strides, args.x_offset);
  check_range("y", args.y, args.extents, args.y_strides, args.y_offset);
  for (int i = 0; i < args.extents.rank(); ++i)
    if (args.extents[i] > 1 && args.y_strides[static_cast<size_t>(i)] == 0)
      throw ShapeError("strided_copy: y has stride 0 along axis " + std::to_string(i) + " of " +
                       args.extents.str() + "; expected one place for each element");
  check_device(op, {&args.x, &args.y});
}

void validate(const Gather& args) {
  check_indexed("gather", args.index, args.x, args.y);
  check_fits("gather", args.index, "x", args.x, args.index.shape().axis(args.axis));
  check_shape("gather", "y", args.y, args.index.shape());
}

void validate(const ScatterAdd& args) {
  const auto floating = {DType::f64, DType::f32, DType::bf16, DType::f16};
  check_dtype("scatter_add", "y", args.y, floating);
  check_indexed("scatter_add", args.index, args.x, args.y);
  check_fits("scatter_add", args.index, "x", args.x, -1);
  check_fits("scatter_add", args.index, "y", args.y, args.index.shape().axis(args.axis));
}

ZG_KERNEL(StridedCopy, strided_copy)
ZG_KERNEL(Gather, gather)
ZG_KERNEL(ScatterAdd, scatter_add)

}  // namespace zg
