#pragma once

#include <cstdint>
#include <string>

#include "zerograd/runtime/api.h"

namespace zg::zero {

/// Loss scaling, which keeps f16 gradients from becoming 0 or infinite. Names, defaults and rules
/// are DeepSpeed's. Micikevicius et al. 2018, arXiv:1710.03740, section 3.2.
struct LossScaleOptions {
  double loss_scale = 0.0;  ///< > 0: constant; 0: dynamic, by the options below
  int initial_scale_power = 16;
  int64_t window = 1000;  ///< steps without an overflow after which the scale doubles
  /// The scale halves at the overflow with this number, counted from 1, and at each later one. The
  /// count starts again when the scale doubles.
  int64_t hysteresis = 2;
  /// True: the count also starts again after every step without an overflow.
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1.0;
};
ZG_API void validate(const LossScaleOptions& options);  ///< throws ConfigError

/// The scale and the rules that change it. Copyable.
class ZG_API LossScaler {
 public:
  LossScaler() = default;  ///< constant scale 1
  explicit LossScaler(const LossScaleOptions& options);

  /// Saved in a checkpoint and restored when a run resumes.
  struct State {
    double scale = 1.0;
    /// Overflows until the scale halves, including the one that halves it.
    int64_t hysteresis = 1;
    int64_t iteration = 0;       ///< updates so far
    int64_t last_overflow = -1;  ///< iteration of the last overflow
    bool operator==(const State&) const = default;
  };

  double scale() const { return state_.scale; }
  bool dynamic() const { return dynamic_; }
  const State& state() const { return state_; }
  /// Does nothing for a constant scale. Throws ConfigError for numbers that no run can produce.
  void restore(const State& state);

  /// Call it after every step, taken or skipped. Returns DeepSpeed's log line about an overflow, or
  /// "". Throws Error and changes nothing if the scale is already at its minimum at an overflow.
  std::string update(bool overflow);

 private:
  LossScaleOptions options_;
  bool dynamic_ = false;
  State state_;
};

}  // namespace zg::zero
