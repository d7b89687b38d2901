#pragma once

#include <cstddef>
#include <cstdint>

#include "zerograd/runtime/random.h"

namespace zg {

/// The rule by which a kernel changes a parameter, element by element.
enum class UpdateRule : uint8_t {
  /// Kingma, Ba 2015, arXiv:1412.6980, algorithm 1; with decoupled weight decay AdamW: Loshchilov,
  /// Hutter 2019, arXiv:1711.05101, algorithm 2. As torch.optim.Adam and AdamW.
  adam,
  /// Chen et al. 2023, arXiv:2302.06675, algorithm 2: the sign of a momentum. As DeepSpeed's Lion,
  /// but a sign of 0 moves nothing.
  lion,
  /// Gradient descent, with Polyak's or Nesterov's momentum if moment1 is given. As
  /// torch.optim.SGD: the first gradient is not dampened. The momentum begins at 0.
  sgd
};
/// "adam", "lion", "sgd".
constexpr const char* name_of(UpdateRule rule) {
  constexpr const char* names[] = {"adam", "lion", "sgd"};
  return names[static_cast<size_t>(rule)];
}

/// The variants of the update kernel: adam has two moments, lion and momentum have one, descent has
/// none.
enum class UpdateKind : uint8_t { adam, lion, momentum, descent };
inline constexpr int update_kinds = 4;
constexpr bool has_moment1(UpdateKind kind) { return kind != UpdateKind::descent; }
constexpr bool has_moment2(UpdateKind kind) { return kind == UpdateKind::adam; }

/// The f32 constants of one step. Each is computed in double with + - * / sqrt alone (powers by
/// repeated squaring, no libm) and rounded to f32 once, so every backend and machine starts from
/// the same numbers. kernels/README.md lists the operations that use them.
struct UpdateConstants {
  float gradient_scale;
  float l2;  ///< weight decay that is added to the gradient; 0 when decoupled
  /// new1: the weight of the new gradient, 1 - beta1. For momentum 1 - dampening, and 1 in step 1.
  float beta1, new1;
  float beta2, new2;  ///< new2 = 1 - beta2
  float unbias2;      ///< 1 / sqrt(1 - beta2^step); adam only
  float epsilon;
  float keep;  ///< 1 - rate * weight_decay; 1 when not decoupled
  float move;  ///< rate; for adam rate / (1 - beta1^step)
  bool nesterov;
};

/// The random bits of stochastic rounding: element e of a parameter uses the upper half of word e %
/// 4 of Philox::block({e / 4, lower half of name, step, upper half of name}, seed).
struct RoundingKey {
  uint64_t seed = 0, name = 0;
  uint32_t step = 0;

  constexpr Philox::Block block(int64_t element) const {
    return Philox::block({static_cast<uint32_t>(element / 4), static_cast<uint32_t>(name), step,
                          static_cast<uint32_t>(name >> 32)},
                         seed);
  }
};

/// Rounds an f32, given by its bits, to one of the two nearest bf16 values. Towards zero means
/// cutting off the lower 16 bits; the probability of rounding away from zero is the cut-off part
/// divided by the distance of the two values. Infinities and NaN are not changed.
constexpr uint16_t stochastic_bf16(uint32_t bits, uint32_t word) {
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  if (finite) bits += word >> 16;
  // Otherwise a NaN whose payload is in the lower bits would become an infinity.
  if (nan) bits |= 0x400000u;
  return static_cast<uint16_t>(bits >> 16);
}

}  // namespace zg
