#pragma once

#include <cstdint>
#include <string>

#include "zerograd/runtime/api.h"

namespace zg::zero {

/// How the loss is scaled so that f16 gradients neither vanish nor overflow; DeepSpeed's keys,
/// defaults and rules. Micikevicius et al. 2018, arXiv:1710.03740, section 3.2.
struct LossScaleOptions {
  double loss_scale = 0.0;  ///< > 0: this one for ever; 0: dynamic, as the rest says
  int initial_scale_power = 16;
  int64_t window = 1000;   ///< steps without an overflow after which the scale doubles
  int64_t hysteresis = 2;  ///< the overflow, counted from the last refill, that first halves it
  bool consecutive_hysteresis = false;  ///< refilled by every good step, not only by doubling
  double min_loss_scale = 1.0;
};
ZG_API void validate(const LossScaleOptions& options);  ///< throws ConfigError

/// The scale and the rules that change it. A small value.
class ZG_API LossScaler {
 public:
  LossScaler() = default;  ///< 1 for ever
  explicit LossScaler(const LossScaleOptions& options);

  /// What a resumed run needs.
  struct State {
    double scale = 1.0;
    int64_t hysteresis = 1;      ///< left: overflows until the scale halves, this one included
    int64_t iteration = 0;       ///< updates so far
    int64_t last_overflow = -1;  ///< the iteration of it
    bool operator==(const State&) const = default;
  };

  double scale() const { return state_.scale; }
  bool dynamic() const { return dynamic_; }
  const State& state() const { return state_; }
  /// A static scaler keeps its scale. ConfigError for numbers that no run can have.
  void restore(const State& state);

  /// After every step, taken or not. Returns DeepSpeed's line about an overflow, or nothing. Throws
  /// Error, changing nothing, when an overflow finds the scale at its minimum.
  std::string update(bool overflow);

 private:
  LossScaleOptions options_;
  bool dynamic_ = false;
  State state_;
};

}  // namespace zg::zero
