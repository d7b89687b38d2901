#include "kernels/cross_entropy.h"

#include "kernels/check.h"
#include "kernels/cpu/cross_entropy.h"

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

void check_projection(const char* op, const Tensor& x, const Tensor& weight,
                      const Tensor& targets) {
  check_matrix(op, "x", x);
  check_matrix(op, "weight", weight);
  check_shape(op, "weight", weight, {weight.extent(0), x.extent(1)});
  check_dtype(op, "weight", weight, x.dtype());
  check_targets(op, targets, x.extent(0));
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

void validate(const ProjectionCrossEntropyForward& args) {
  const char* op = "projection_cross_entropy_forward";
  check_projection(op, args.x, args.weight, args.targets);
  check_per_row(op, "loss", args.loss, args.x);
  check_per_row(op, "log_sum", args.log_sum, args.x);
  check_device(op, {&args.x, &args.weight, &args.targets, &args.loss, &args.log_sum});
}

void validate(const ProjectionCrossEntropyBackward& args) {
  const char* op = "projection_cross_entropy_backward";
  check_projection(op, args.x, args.weight, args.targets);
  check_per_row(op, "log_sum", args.log_sum, args.x);
  check_per_row(op, "dloss", args.dloss, args.x);
  if (args.dx) {
    check_shape(op, "dx", args.dx, args.x.shape());
    check_dtype(op, "dx", args.dx, args.x.dtype());
  }
  if (args.dweight) {
    check_shape(op, "dweight", args.dweight, args.weight.shape());
    check_dtype(op, "dweight", args.dweight, accumulator(args.weight.dtype()));
  }
  check_device(op, {&args.x, &args.weight, &args.targets, &args.log_sum, &args.dloss, &args.dx,
                    &args.dweight});
}

namespace kernels {
constinit Kernel<CrossEntropyForward> cross_entropy_forward{.name = "cross_entropy_forward",
                                                            .cpu = cpu::cross_entropy_forward};
constinit Kernel<CrossEntropyBackward> cross_entropy_backward{.name = "cross_entropy_backward",
                                                              .cpu = cpu::cross_entropy_backward};
constinit Kernel<ProjectionCrossEntropyForward> projection_cross_entropy_forward{
    .name = "projection_cross_entropy_forward",
    .workspace_bytes = cpu::projection_forward_workspace,
    .cpu = cpu::projection_cross_entropy_forward};
constinit Kernel<ProjectionCrossEntropyBackward> projection_cross_entropy_backward{
    .name = "projection_cross_entropy_backward",
    .workspace_bytes = cpu::projection_backward_workspace,
    .cpu = cpu::projection_cross_entropy_backward};
}  // namespace kernels

}  // namespace zg
