#include "zerograd/kernels/elementwise/dropout.h"

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/kernels/kernel.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

struct DropoutSettings {
  float probability = 0.0f;
  DropoutKey key;
};

/// Forward calls it on x, backward on dy. The mask is computed from the key each time, so it is not
/// stored.
void drop(const DropoutSettings& settings, const Tensor& x, const Tensor& y, Stream& stream) {
  const Shape shape = x.shape().rank() == 0 ? Shape{1} : x.shape();
  kernels::dropout({.x = x.view(shape),
                    .y = y.view(shape),
                    .probability = settings.probability,
                    .key = settings.key},
                   stream);
}

}  // namespace

Var dropout(const Var& x, float p, const DropoutKey& key) {
  const Tensor values = floating_operand("dropout", "x", x);
  if (!(p >= 0.0f && p < 1.0f))
    raise<ConfigError>("dropout: probability {:f}; expected 0 <= p < 1", p);
  if (p == 0.0f) return x;
  const DropoutSettings settings{p, key};
  const Tensor y = empty_like(values);
  drop(settings, values, y, y.device().compute());
  return record(
      "dropout", {x}, y, {}, settings,
      [](const DropoutSettings& s, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        const InputGradient dx(pass, 0, dy.dtype());
        drop(s, dy, dx.tensor(), pass.stream());
        dx.accumulate();
      },
      [](const DropoutSettings& s, const Var& dy) { return dropout(dy, s.probability, s.key); });
}

}  // namespace zg
