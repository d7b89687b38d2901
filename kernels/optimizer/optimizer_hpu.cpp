#include "zerograd/kernels/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/hpu/modules.h"
#include "zerograd/kernels/optimizer/square_groups.h"
#include "zerograd/runtime/text/format.h"

namespace zg::hpu {
namespace {

/// The constants in the layout that update.cl reads: a float16.
struct alignas(64) Constants {
  float v[16] = {};
  explicit Constants(const UpdateConstants& c)
      : v{c.gradient_scale,
          c.l2,
          c.beta1,
          c.new1,
          c.beta2,
          c.new2,
          c.unbias2,
          c.epsilon,
          c.keep,
          c.move,
          c.nesterov ? 1.0f : 0.0f} {}
};

constexpr const char* kinds[update_kinds] = {"adam", "lion", "momentum", "descent"};

}  // namespace

void optimizer_update(const OptimizerUpdate& a, Workspace workspace, Stream& stream) {
  if (a.scale) {
    if (const auto known = with_known_scale(a, stream)) optimizer_update(*known, workspace, stream);
    return;
  }
  for (const OptimizerTensor& t : a.tensors) {
    if (t.low_precision && t.low_precision.dtype() != DType::bf16)
      raise<Unsupported>("{}: no hpu kernel for a low_precision of {}; expected bf16",
                         name_of(a.rule), t.low_precision.dtype());
    const int64_t n = t.parameter.numel();
    if (n == 0) continue;
    const std::string kernel = fmt::format("{}_{}_{}", kinds[static_cast<size_t>(kind_of(a))],
                                           t.parameter.dtype(), t.gradient.dtype());
    const RoundingKey key = a.rounding_seed ? rounding_key(a, t) : RoundingKey();
    launch(stream, module("update"), kernel.c_str(), {groups_for(n)}, t.gradient.raw(),
           t.parameter.raw(), t.moment1.raw(), t.moment2.raw(), t.low_precision.raw(), n,
           Constants(constants(a, t)), uint32_t{a.rounding_seed.has_value()}, key.seed, key.name,
           t.first, key.step);
  }
}

void sum_of_squares(const SumOfSquares& a, Workspace workspace, Stream& stream) {
  for (const SumOfSquares::Part& part : a.parts) {
    const int64_t granules = part.x.numel() / SumOfSquares::granule;
    if (granules == 0) continue;
    const SquareGroups cut(granules);
    const Code code = module("sum_of_squares", part.x.dtype());
    launch(stream, code, "squares", {cut.groups}, part.x.raw(), workspace.data, granules);
    launch(stream, code, "add_squares", {}, workspace.data, part.limbs.raw(), part.non_finite.raw(),
           cut.groups);
  }
}

// On the host, which waits for the sums: a device need not have f64.
void gradient_scale(const GradientScale& a, Workspace, Stream& stream) {
  const std::vector<int64_t> limbs = a.limbs.to_host<int64_t>();
  const std::vector<int64_t> counts = a.non_finite.to_host<int64_t>();
  const bool finite = std::all_of(counts.begin(), counts.end(), [](int64_t n) { return n == 0; });
  const double norm = std::sqrt(value_of_limbs(limbs.data())) / a.clipping.divisor();
  const float scale = finite ? a.clipping.factor(norm) : std::numeric_limits<float>::quiet_NaN();
  stream.copy(a.scale.raw(), &scale, sizeof scale);
}

void fold_gradient(const FoldGradient& a, Workspace, Stream& stream) {
  for (const FoldGradient::Part& part : a.parts) {
    std::string kernel = "fold";
    for (const DType dtype : {part.leaf.dtype(), a.rounding, part.sum.dtype()})
      kernel += std::string("_") + word("fold_gradient", dtype, {DType::f32, DType::bf16});
    const int64_t n = part.leaf.numel();
    launch(stream, module("fold_gradient"), kernel.c_str(), {groups_for(n)}, part.leaf.raw(),
           part.sum.raw(), n, int32_t{part.first});
  }
}

}  // namespace zg::hpu
