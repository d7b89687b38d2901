#include "zerograd/kernels/cross_entropy.h"

#include "zerograd/kernels/check.h"
#include "zerograd/kernels/cpu/cross_entropy.h"
#include "zerograd/kernels/cuda/slot.h"
#include "zerograd/kernels/cuda/workspace.h"
#include "zerograd/kernels/hpu/slot.h"
#include "zerograd/kernels/hpu/workspace.h"

namespace zg {
namespace {

constexpr auto floating = {DType::f64, DType::f32, DType::bf16, DType::f16};

void check_matrix(const char* op, const char* name, const Tensor& tensor) {
  check_dtype(op, name, tensor, floating);
  if (tensor.shape().rank() != 2)
    throw ShapeError(std::string(op) + ": " + name + " has shape " + tensor.shape().str() +
                     "; expected rank 2");
}

void check_targets(const char* op, const Tensor& targets, int64_t N) {
  check_shape(op, "targets", targets, {N});
  check_dtype(op, "targets", targets, {DType::i32, DType::i64});
}

/// One number of the accumulator dtype per row.
void check_per_row(const char* op, const char* name, const Tensor& tensor, const Tensor& rows) {
  check_shape(op, name, tensor, {rows.extent(0)});
  check_dtype(op, name, tensor, accumulator(rows.dtype()));
}

}  // namespace

void validate(const CrossEntropyForward& args) {
  const char* op = "cross_entropy_forward";
  check_matrix(op, "logits", args.logits);
  check_targets(op, args.targets, args.logits.extent(0));
  check_per_row(op, "loss", args.loss, args.logits);
  check_per_row(op, "log_sum", args.log_sum, args.logits);
  check_device(op, {&args.logits, &args.targets, &args.loss, &args.log_sum});
}

void validate(const CrossEntropyBackward& args) {
  const char* op = "cross_entropy_backward";
  check_matrix(op, "logits", args.logits);
  check_targets(op, args.targets, args.logits.extent(0));
  check_per_row(op, "log_sum", args.log_sum, args.logits);
  check_per_row(op, "dloss", args.dloss, args.logits);
  check_shape(op, "dlogits", args.dlogits, args.logits.shape());
  check_dtype(op, "dlogits", args.dlogits, args.logits.dtype());
  check_device(op, {&args.logits, &args.targets, &args.log_sum, &args.dloss, &args.dlogits});
}

void validate(const ProjectionCrossEntropy& args) {
  const char* op = "projection_cross_entropy";
  check_matrix(op, "x", args.x);
  check_matrix(op, "weight", args.weight);
  check_shape(op, "weight", args.weight, {args.weight.extent(0), args.x.extent(1)});
  check_dtype(op, "weight", args.weight, args.x.dtype());
  check_targets(op, args.targets, args.x.extent(0));
  check_per_row(op, "loss", args.loss, args.x);
  const auto check_gradient = [&](const char* name, const Tensor& gradient, const Tensor& of) {
    if (!gradient) return;
    check_shape(op, name, gradient, of.shape());
    check_dtype(op, name, gradient, accumulator(of.dtype()));
  };
  check_gradient("dx", args.dx, args.x);
  check_gradient("dweight", args.dweight, args.weight);
  check_device(op, {&args.x, &args.weight, &args.targets, &args.loss, &args.dx, &args.dweight});
}

namespace cuda {
void cross_entropy_forward(const CrossEntropyForward&, Workspace, Stream&);
void cross_entropy_backward(const CrossEntropyBackward&, Workspace, Stream&);
void projection_cross_entropy(const ProjectionCrossEntropy&, Workspace, Stream&);
}  // namespace cuda
namespace hpu {
void cross_entropy_forward(const CrossEntropyForward&, Workspace, Stream&);
void cross_entropy_backward(const CrossEntropyBackward&, Workspace, Stream&);
void projection_cross_entropy(const ProjectionCrossEntropy&, Workspace, Stream&);
}  // namespace hpu

namespace kernels {
constinit Kernel<CrossEntropyForward> cross_entropy_forward{
    .name = "cross_entropy_forward",
    .cpu = cpu::cross_entropy_forward,
    .cuda = ZG_CUDA_KERNEL(cross_entropy_forward),
    .hpu = ZG_HPU_KERNEL(cross_entropy_forward)};
constinit Kernel<CrossEntropyBackward> cross_entropy_backward{
    .name = "cross_entropy_backward",
    .cpu = cpu::cross_entropy_backward,
    .cuda = ZG_CUDA_KERNEL(cross_entropy_backward),
    .hpu = ZG_HPU_KERNEL(cross_entropy_backward)};
constinit Kernel<ProjectionCrossEntropy> projection_cross_entropy{
    .name = "projection_cross_entropy",
    .workspace_bytes = cpu::projection_cross_entropy_workspace,
    .cpu = cpu::projection_cross_entropy,
    .cuda_workspace_bytes = cuda::projection_cross_entropy_bytes,
    .cuda = ZG_CUDA_KERNEL(projection_cross_entropy),
    .hpu_workspace_bytes = hpu::projection_cross_entropy_bytes,
    .hpu = ZG_HPU_KERNEL(projection_cross_entropy)};
}  // namespace kernels

}  // namespace zg
