#include "zerograd/kernels/loss/cross_entropy.h"

#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

void check_matrix(const char* op, const char* name, const Tensor& tensor) {
  check_dtype(op, name, tensor, floating);
  if (tensor.shape().rank() != 2)
    raise<ShapeError>("{}: {} has shape {}; expected rank 2", op, name, tensor.shape());
}

void check_targets(const char* op, const Tensor& targets, int64_t N) {
  check_shape(op, "targets", targets, {N});
  check_dtype(op, "targets", targets, {DType::i32, DType::i64});
}

/// Checks a tensor that has one number of the accumulator dtype for each row.
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
}

void validate(const CrossEntropyBackward& args) {
  const char* op = "cross_entropy_backward";
  check_matrix(op, "logits", args.logits);
  check_targets(op, args.targets, args.logits.extent(0));
  check_per_row(op, "log_sum", args.log_sum, args.logits);
  check_per_row(op, "dloss", args.dloss, args.logits);
  check_like(op, "dlogits", args.dlogits, args.logits);
}

void validate(const ProjectionCrossEntropy& args) {
  const char* op = "projection_cross_entropy";
  check_matrix(op, "x", args.x);
  check_matrix(op, "weight", args.weight);
  check_shape(op, "weight", args.weight, {args.weight.extent(0), args.x.extent(1)});
  if (args.x.dtype() == DType::f32 && !args.dx && !args.dweight)
    check_dtype(op, "weight", args.weight, {DType::f32, DType::bf16, DType::f16});
  else
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
}

ZG_KERNEL(CrossEntropyForward, cross_entropy_forward)
ZG_KERNEL(CrossEntropyBackward, cross_entropy_backward)

}  // namespace zg
