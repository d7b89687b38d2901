#include "zerograd/zero/optimizer/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::zero {
namespace {

void check_scale(bool within, const char* what, double value, const char* expected) {
  if (!within) raise<ConfigError>("loss scale: {} is {:f}; expected {}", what, value, expected);
}

bool positive(double x) { return std::isfinite(x) && x > 0.0; }

// Prints a number as Python's int() does: without a fraction, also if it is large.
std::string integer(double x) { return fmt::format("{:.0f}", std::trunc(x)); }

}  // namespace

void validate(const LossScaleOptions& o) {
  check_scale(o.loss_scale == 0.0 || positive(o.loss_scale), "loss_scale", o.loss_scale,
              "a finite number from 0, where 0 means dynamic");
  // Outside this range the scale is not a normal f32.
  check_scale(o.initial_scale_power >= -126 && o.initial_scale_power <= 127, "initial_scale_power",
              o.initial_scale_power, "an exponent in -126 .. 127");
  check_scale(o.window >= 1, "window", static_cast<double>(o.window), "1 or more");
  check_scale(o.hysteresis >= 1, "hysteresis", static_cast<double>(o.hysteresis), "1 or more");
  check_scale(positive(o.min_loss_scale), "min_loss_scale", o.min_loss_scale,
              "a finite number above 0");
}

LossScaler::LossScaler(const LossScaleOptions& options)
    : options_(options), dynamic_(options.loss_scale == 0.0) {
  validate(options);
  state_.scale = dynamic_ ? std::ldexp(1.0, options.initial_scale_power) : options.loss_scale;
  state_.hysteresis = options.hysteresis;
}

void LossScaler::restore(const State& state) {
  check_scale(positive(state.scale), "the restored scale", state.scale, "a finite number above 0");
  check_scale(state.hysteresis >= 1, "the restored hysteresis",
              static_cast<double>(state.hysteresis), "1 or more");
  check_scale(
      state.last_overflow >= -1 && state.last_overflow < std::max<int64_t>(state.iteration, 0),
      "the restored last overflow", static_cast<double>(state.last_overflow),
      "-1, or an iteration that was");
  if (dynamic_) state_ = state;
}

std::string LossScaler::update(bool overflow) {
  if (!dynamic_) return {};
  State& s = state_;
  std::string line;
  if (overflow) {
    line = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: " + integer(s.scale);
    if (options_.hysteresis == 1 || s.hysteresis == 1) {
      if (s.scale == options_.min_loss_scale)
        throw Error(
            "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.");
      s.scale = std::max(s.scale / 2.0, options_.min_loss_scale);
      line += ", reducing to " + integer(s.scale);
    } else {
      line += fmt::format(", but hysteresis is {}. Reducing hysteresis to {}", s.hysteresis,
                          s.hysteresis - 1);
      --s.hysteresis;
    }
    s.last_overflow = s.iteration;
  } else {
    const int64_t good =
        s.iteration - s.last_overflow - 1;  // consecutive good steps before this one
    const bool doubles = good > 0 && good % options_.window == 0;
    if (doubles) s.scale *= 2.0;
    if (doubles || options_.consecutive_hysteresis) s.hysteresis = options_.hysteresis;
  }
  ++s.iteration;
  return line;
}

}  // namespace zg::zero
