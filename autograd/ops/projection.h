#pragma once

#include "zerograd/autograd/tape.h"
#include "zerograd/kernels/matmul/matmul.h"

// y = x weight^T + bias and its gradients, for linear and feed_forward.
namespace zg {

/// x [rows, in], weight [out, in], y [rows, out].
struct Projection {
  int64_t rows = 0, in = 0, out = 0;
};

/// Names of the operands in an op's error messages.
struct ProjectionNames {
  const char *op, *x, *weight, *bias;
};

/// Throws ShapeError, DTypeError or DeviceError unless the operands fit; bias may be absent.
Projection projection_of(const ProjectionNames& names, const Tensor& x, const Tensor& weight,
                         const Tensor& bias);

struct ProjectionForward {
  Tensor x, weight, bias;
  Activation activation = Activation::none;
  Tensor y;       ///< out
  Tensor before;  ///< out or absent: the sum that the activation reads
};
void project(const Projection& p, const ProjectionForward& forward);

/// The gradient of x from that of y: dx = dy weight.
void project_back(const Projection& p, const Tensor& dy, const Tensor& weight, const Tensor& dx,
                  Stream& stream);
/// Hand over the gradient of the input `weight` or `bias`, when it is needed.
void accumulate_weight(const Projection& p, const BackwardPass& pass, int weight, const Tensor& dy,
                       const Tensor& x);
void accumulate_bias(const BackwardPass& pass, int bias, const Tensor& dy);

}  // namespace zg
