#include "zerograd/kernels/elementwise/dropout.h"

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/gradient.h"
#include "zerograd/autograd/ops/operand.h"

namespace zg {
namespace {

struct Mask {
  float probability = 0.0f;
  DropoutKey key;
};

/// Forward on x and backward on dy alike: the mask is made again from its place.
void drop(const Mask& mask, const Tensor& x, const Tensor& y, Stream& stream) {
  const int64_t samples = x.shape().rank() == 0 ? 1 : x.extent(0);
  const Shape shape{samples, samples == 0 ? 0 : x.numel() / samples};
  kernels::dropout(
      {.x = x.view(shape), .y = y.view(shape), .probability = mask.probability, .key = mask.key},
      stream);
}

}  // namespace

Var dropout(const Var& x, float p, const DropoutKey& key) {
  const Tensor values = floating_operand("dropout", "x", x);
  if (!(p >= 0.0f && p < 1.0f))
    throw ConfigError("dropout: probability " + std::to_string(p) + "; expected 0 <= p < 1");
  if (p == 0.0f) return x;
  const Mask mask{p, key};
  const Tensor y = empty_like(values);
  drop(mask, values, y, y.device().compute());
  return record("dropout", {x}, y, {}, mask, [](const Mask& m, const BackwardPass& pass) {
    const Tensor& dy = pass.gradient_of_output();
    const InputGradient dx(pass, 0, dy.dtype());
    drop(m, dy, dx.tensor(), pass.stream());
    dx.accumulate();
  });
}

}  // namespace zg
