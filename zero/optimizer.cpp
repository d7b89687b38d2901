#include "zero/optimizer.h"

#include <algorithm>
#include <vector>

#include "kernels/adam.h"

namespace zg::zero {
namespace {

// A meta device answers zeros: finite gradients of norm 0.
std::vector<int64_t> read_back(const Tensor& counts) {
  if (counts.device().type() != Device::Type::meta) return counts.to_host<int64_t>();
  return std::vector<int64_t>(static_cast<size_t>(counts.numel()));
}

}  // namespace

GradientSummary summarise(std::span<const UnitStorage> units, int64_t parameters,
                          const Device& device) {
  const PurposeScope purpose(device, Purpose::workspace);
  const Tensor limbs = Tensor::zeros({SumOfSquares::limb_count}, DType::i64, device);
  const Tensor non_finite = Tensor::zeros({parameters}, DType::i64, device);
  std::vector<const Parameter*> measured(static_cast<size_t>(parameters));
  for (const UnitStorage& unit : units)
    for (size_t i = 0; i < unit.pieces.size(); ++i) {
      if (!unit.folded[i]) continue;
      const FlatUnit::Piece& piece = unit.pieces[i];
      const int index = piece.parameter->index;
      measured[static_cast<size_t>(index)] = piece.parameter;
      // With the padding behind it, which is zero: whole granules.
      kernels::sum_of_squares({.x = unit.sums.flat(piece.begin, FlatUnit::aligned(piece.numel())),
                               .limbs = limbs,
                               .non_finite = non_finite.flat(index, 1)},
                              device.compute());
    }
  GradientSummary summary{.sum_of_squares = value_of_limbs(read_back(limbs).data())};
  const std::vector<int64_t> counts = read_back(non_finite);
  const auto bad = std::find_if(counts.begin(), counts.end(), [](int64_t n) { return n > 0; });
  if (bad != counts.end()) summary.non_finite = measured[static_cast<size_t>(bad - counts.begin())];
  return summary;
}

float gradient_scale(double norm, int64_t micro_batches, float clip_norm) {
  const double clip = clip_norm > 0.0f ? std::min(1.0, clip_norm / (norm + 1e-6)) : 1.0;
  return static_cast<float>(clip / static_cast<double>(micro_batches));
}

void update(UnitStorage& unit, const OptimizerStep& step, Stream& stream) {
  unit.zero_unfolded(stream);
  for (const FlatUnit::Range& range : unit.trainable.ranges(0)) {
    const auto part = [&](const Tensor& tensor) { return tensor.flat(range.begin, range.numel()); };
    kernels::adam({.parameter = part(unit.masters),
                   .gradient = part(unit.sums),
                   .moment1 = part(unit.moment1),
                   .moment2 = part(unit.moment2),
                   .low_precision = unit.low_precision(range),
                   .gradient_scale = step.gradient_scale,
                   .rate = step.rate,
                   .beta1 = step.adam.beta1,
                   .beta2 = step.adam.beta2,
                   .epsilon = step.adam.epsilon,
                   .weight_decay = range.decay ? step.adam.weight_decay : 0.0f,
                   .step = step.step},
                  stream);
  }
}

}  // namespace zg::zero
