#include "kernels/movement.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/movement.h"
#include "kernels/cuda/slot.h"
#include "kernels/hpu/slot.h"

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

/// `index` has the shape of `picked`, and `other` differs from them along `axis` alone.
void check_indexed(const char* op, const Tensor& index, const char* picked_name,
                   const Tensor& picked, const char* other_name, const Tensor& other, int axis) {
  check_present(op, picked_name, picked);
  check_dtype(op, "index", index, {DType::i32, DType::i64});
  check_shape(op, picked_name, picked, index.shape());
  const int at = index.shape().axis(axis);
  check_present(op, other_name, other);
  const bool same_rank = other.shape().rank() == index.shape().rank();
  check_shape(op, other_name, other,
              same_rank ? index.shape().with(at, other.extent(at)) : index.shape());
  check_dtype(op, other_name, other, picked.dtype());
  check_device(op, {&index, &picked, &other});
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
  check_indexed("gather", args.index, "y", args.y, "x", args.x, args.axis);
}

void validate(const ScatterAdd& args) {
  const auto floating = {DType::f64, DType::f32, DType::bf16, DType::f16};
  check_dtype("scatter_add", "y", args.y, floating);
  check_indexed("scatter_add", args.index, "x", args.x, "y", args.y, args.axis);
}

namespace cuda {
void strided_copy(const StridedCopy&, Workspace, Stream&);
void gather(const Gather&, Workspace, Stream&);
void scatter_add(const ScatterAdd&, Workspace, Stream&);
}  // namespace cuda
namespace hpu {
void strided_copy(const StridedCopy&, Workspace, Stream&);
void gather(const Gather&, Workspace, Stream&);
void scatter_add(const ScatterAdd&, Workspace, Stream&);
}  // namespace hpu

namespace kernels {
constinit Kernel<StridedCopy> strided_copy{.name = "strided_copy",
                                           .cpu = cpu::strided_copy,
                                           .cuda = ZG_CUDA_KERNEL(strided_copy),
                                           .hpu = ZG_HPU_KERNEL(strided_copy)};
constinit Kernel<Gather> gather{.name = "gather",
                                .cpu = cpu::gather,
                                .cuda = ZG_CUDA_KERNEL(gather),
                                .hpu = ZG_HPU_KERNEL(gather)};
constinit Kernel<ScatterAdd> scatter_add{.name = "scatter_add",
                                         .workspace_bytes = cpu::scatter_add_workspace,
                                         .cpu = cpu::scatter_add,
                                         .cuda = ZG_CUDA_KERNEL(scatter_add),
                                         .hpu = ZG_HPU_KERNEL(scatter_add)};
}  // namespace kernels

}  // namespace zg
