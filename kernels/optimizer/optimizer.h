#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "zerograd/kernels/kernel.h"
#include "zerograd/kernels/optimizer/update_constants.h"
#include "zerograd/runtime/random.h"

namespace zg {

/// The state of a parameter, or of a range of its elements, with its gradient.
struct OptimizerTensor {
  Tensor parameter;      ///< [n] f32 master weights | bf16, in and out
  Tensor gradient;       ///< [n] f32 | bf16
  Tensor moment1;        ///< [n] like parameter, in and out; absent: sgd without momentum
  Tensor moment2;        ///< [n] like parameter, in and out; adam only
  Tensor low_precision;  ///< [n] bf16 | f16 out: the rounded parameter; may be absent, and
                         ///< must be absent if the parameter is bf16
  float weight_decay = 0.0f;
  float rate_factor = 1.0f;  ///< multiplies OptimizerUpdate::rate, in double
  // For stochastic rounding only. With both set, a range is rounded like the same elements of the
  // whole parameter.
  uint64_t name =
      0;  ///< hash_name() of the parameter's name; parameters get different random bits by it
  int64_t first = 0;  ///< index of element 0 in its parameter, which has at most 2^34
};

/// One step of an optimizer. Every backend and instruction set does the same list of IEEE f32
/// operations (kernels/README.md). So an update has the same bits on every device, for any division
/// of a tensor and any other tensors in the call. With parameter and moments in bf16 the list is
/// the same, and its results are rounded to nearest even: an update of less than 2^-9 of the
/// parameter is lost.
///
/// With stochastic rounding a parameter is rounded to one of the two nearest bf16 values, to the
/// nearer one with the higher probability. So small updates are not lost on average. Gupta et al.
/// 2015, arXiv:1502.02551; without master weights: Zamirai et al. 2020, arXiv:2010.06192. It
/// applies to low_precision, or to a bf16 parameter; moments are rounded to nearest even. The
/// random bits depend on seed, step, name and the index of an element alone.
struct OptimizerUpdate {
  /// Any number of tensors of any lengths; all with the same dtypes and the same moments.
  std::vector<OptimizerTensor> tensors;
  UpdateRule rule = UpdateRule::adam;
  /// Multiplies the gradients: 1 / micro-batches, 1 / loss scale, clipping.
  float gradient_scale = 1.0f;
  /// [1] f32: the same factor where the device has computed it (GradientScale), so that the host
  /// need not wait for it. If it is NaN, nothing is updated. Absent: gradient_scale is used.
  Tensor scale;
  float rate = 1e-3f;
  float beta1 = 0.9f;      ///< adam, lion; sgd: the momentum
  float beta2 = 0.999f;    ///< adam, lion
  float epsilon = 1e-8f;   ///< adam
  float dampening = 0.0f;  ///< sgd: the share of a gradient that the momentum ignores
  bool nesterov = false;   ///< sgd: Nesterov's momentum
  int64_t step = 1;        ///< counts from 1; for adam's bias corrections and sgd's first step
  bool decoupled = true;   ///< false: weight decay is added to the gradient (L2)
  std::optional<uint64_t> rounding_seed;  ///< stochastic rounding to bf16; absent: nearest even
};
/// Throws ShapeError, DTypeError; ConfigError for numbers out of range.
ZG_API void validate(const OptimizerUpdate&);
ZG_API std::vector<Operand> operands(const OptimizerUpdate&);  ///< the operands of every tensor
ZG_API void adjust_count(OpCount&,
                         const OptimizerUpdate&);  ///< parameters and moments are read, too
ZG_API UpdateConstants constants(const OptimizerUpdate&, const OptimizerTensor&);
/// For kernels that take the factor as a number: the update with gradient_scale read from `scale`,
/// after a wait for `stream`. Absent: the factor is NaN.
ZG_API std::optional<OptimizerUpdate> with_known_scale(const OptimizerUpdate&, Stream& stream);
/// The kernel variant that `update` needs. All of its tensors have the same moments.
inline UpdateKind kind_of(const OptimizerUpdate& update) {
  switch (update.rule) {
    case UpdateRule::adam:
      return UpdateKind::adam;
    case UpdateRule::lion:
      return UpdateKind::lion;
    case UpdateRule::sgd:
      break;
  }
  const bool has_momentum = !update.tensors.empty() && update.tensors[0].moment1;
  return has_momentum ? UpdateKind::momentum : UpdateKind::descent;
}
/// For a step with a rounding_seed.
inline RoundingKey rounding_key(const OptimizerUpdate& a, const OptimizerTensor& tensor) {
  return {.seed = *a.rounding_seed, .name = tensor.name, .step = static_cast<uint32_t>(a.step)};
}

/// The most elements of a parameter with stochastic rounding: 2^32 Philox counters of four words.
inline constexpr int64_t max_rounded_elements = int64_t{1} << 34;

/// Exact sum of squares. The squares of each granule of 16 elements are summed in f64, and this sum
/// is added to a fixed-point integer, which is an array of int64 limbs. Integer addition is exact,
/// so the result does not depend on the order, on sharding or on the transport. The limbs of shards
/// are added element by element.
///
/// Within a granule the squares s are added as t[i] = s[i] + s[i + 8], then by distances 4, 2, 1:
/// the same double at every level. Limb i counts units of 2^(26 i - 520) and grows by less than
/// 2^26 with a granule, so 2^37 granules (2 * 10^12 elements) fit before a limb can overflow. Bits
/// below 2^-520 of a granule's sum are dropped, and a sum of 2^520 or more counts as the largest
/// double below 2^520; both happen only with f64 elements. A granule with an infinity or a NaN is
/// only counted in non_finite.
struct SumOfSquares {
  static constexpr int limb_count = 40, limb_bits = 26, lowest_exponent = -520, granule = 16;
  struct Part {
    Tensor x;           ///< [n] f64 | f32 | bf16 | f16; n and the split points are multiples of 16
    Tensor limbs;       ///< [limb_count] i64, added to; parts may share one
    Tensor non_finite;  ///< [1] i64, added to: how many elements are infinite or NaN; as limbs
    /// Each element is a granule, so that x may be divided between any two elements. Accelerators
    /// ignore it, as they do ReductionGroups.
    bool each = false;
  };
  std::vector<Part> parts;  ///< any number, of any lengths; every x has the same dtype
};
ZG_API void validate(const SumOfSquares&);
ZG_API std::vector<Operand> operands(const SumOfSquares&);  ///< the operands of every part
ZG_API void adjust_count(OpCount&, const SumOfSquares&);
/// 2^exponent, for exponents of normal doubles.
constexpr double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}
/// The value of the fixed-point number as the nearest double; limbs must not be negative.
constexpr double value_of_limbs(const int64_t* limbs) {
  constexpr int bits = SumOfSquares::limb_bits, count = SumOfSquares::limb_count;
  // Carries are propagated, so that every digit is below 2^26. Two digits above the highest limb
  // receive its carry. `digit` has the current digit and the three below it, `top` the same for the
  // highest digit so far that is not 0.
  struct Window {
    uint64_t digit[4] = {};
    bool has_lower = false;  // a digit below those is not 0
    int index = -1;
  } now, top;
  uint64_t carry = 0;
  for (int i = 0; i < count + 2; ++i) {
    if (i < count) carry += static_cast<uint64_t>(limbs[i]);
    now.has_lower = now.has_lower || now.digit[3] != 0;
    for (int k = 3; k > 0; --k) now.digit[k] = now.digit[k - 1];
    now.digit[0] = carry & ((uint64_t{1} << bits) - 1);
    now.index = i;
    carry >>= bits;
    if (now.digit[0] != 0) top = now;
  }
  if (top.index < 0) return 0.0;
  // high and low hold two digits each, which a double represents exactly. Their sum rounds once, to
  // nearest. Lower digits matter only if that rounding is a tie; then the last bit of low, set if
  // any of them is not 0, decides it. That bit is at least 26 bits below the last bit of the sum.
  const uint64_t high = top.digit[0] << bits | top.digit[1];
  const uint64_t low = top.digit[2] << bits | top.digit[3] | (top.has_lower ? 1 : 0);
  const double sum = static_cast<double>(high) * power_of_two(2 * bits) + static_cast<double>(low);
  return sum * power_of_two(SumOfSquares::lowest_exponent + bits * (top.index - 3));
}

/// The factor of all gradients of a step: 1 / (micro_batches * loss_scale). If the norm exceeds
/// clip_norm > 0 it also has clip_norm / (norm + 1e-6), as in torch.nn.utils.clip_grad_norm_.
struct Clipping {
  int64_t micro_batches = 1;
  float clip_norm = 0.0f;
  double loss_scale = 1.0;

  constexpr double divisor() const { return static_cast<double>(micro_batches) * loss_scale; }
  /// `norm`: of the mean gradient, without the loss scale.
  constexpr float factor(double norm) const {
    const double ratio = clip_norm > 0.0f ? clip_norm / (norm + 1e-6) : 1.0;
    return static_cast<float>((ratio < 1.0 ? ratio : 1.0) / divisor());
  }
};

/// Computes Clipping::factor on the device, from the sum of the squares of all gradients. f64
/// operations that round correctly: every backend has the bits of the host. The factor is NaN, with
/// which OptimizerUpdate changes nothing, if a gradient is infinite or NaN, and on an accelerator
/// if an earlier kernel of the stream found an invalid value, which the next synchronize() will
/// throw.
struct GradientScale {
  Tensor limbs;       ///< [limb_count] i64, as in SumOfSquares
  Tensor non_finite;  ///< [n] i64: counts of gradients that are infinite or NaN
  Tensor scale;       ///< [1] f32, out
  Clipping clipping;
};
ZG_API void validate(const GradientScale&);  ///< throws ShapeError, DTypeError
ZG_API std::vector<Operand> operands(const GradientScale&);

namespace kernels {
extern ZG_API Kernel<OptimizerUpdate> optimizer_update;
extern ZG_API Kernel<SumOfSquares> sum_of_squares;
extern ZG_API Kernel<GradientScale> gradient_scale;
}  // namespace kernels

/// Adds the gradients of one micro-batch (`leaf`) to the gradient accumulators: sum = (first ? 0 :
/// sum) + rounded(leaf), in one pass, without a rounded copy. The bits are the same for every
/// instruction set and any division of the arrays.
struct FoldGradient {
  struct Part {
    Tensor leaf;  ///< [n] f32 | bf16 | f16
    Tensor sum;   ///< [n] f32 | bf16 (added in f32, rounded once), in and out; not read if `first`;
                  ///< it may then be the f32 leaf itself, which is rounded in place
    bool first = false;  ///< use +0 instead of the contents of `sum`
  };
  std::vector<Part> parts;  ///< any number, of any lengths; of one dtype of leaf and one of sum
  /// F32 | bf16 | f16: the dtype to which a leaf is rounded, to nearest even.
  DType rounding = DType::f32;
};
ZG_API void validate(const FoldGradient&);                  ///< throws ShapeError, DTypeError
ZG_API std::vector<Operand> operands(const FoldGradient&);  ///< the operands of every part
ZG_API void adjust_count(OpCount&, const FoldGradient&);  ///< a sum that is not first is read, too

namespace kernels {
extern ZG_API Kernel<FoldGradient> fold_gradient;
}

}  // namespace zg
