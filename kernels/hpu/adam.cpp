#include "kernels/adam.h"

#include "kernels/hpu/launch.h"

namespace zg::hpu {
namespace {

/// As adam.cl reads them: a float16.
struct alignas(64) Constants {
  float v[16] = {};
  explicit Constants(const AdamConstants& c)
      : v{c.gradient_scale, c.l2,      c.beta1,   c.new1, c.beta2,
          c.new2,           c.unbias2, c.epsilon, c.keep, c.move} {}
};

}  // namespace

void adam(const Adam& a, Workspace, Stream& stream) {
  if (a.low_precision && a.low_precision.dtype() != DType::bf16)
    throw Unsupported(std::string("adam: no hpu kernel for a low_precision of ") +
                      name_of(a.low_precision.dtype()) + "; expected bf16");
  const std::string kernel =
      std::string("adam_") + name_of(a.parameter.dtype()) + "_" + name_of(a.gradient.dtype());
  const int64_t n = a.parameter.numel();
  launch(stream, module("adam"), kernel.c_str(), {groups_for(n)}, a.gradient.raw(),
         a.parameter.raw(), a.moment1.raw(), a.moment2.raw(), a.low_precision.raw(), n,
         Constants(constants(a)));
}

}  // namespace zg::hpu
