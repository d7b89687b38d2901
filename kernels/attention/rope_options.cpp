#include <algorithm>
#include <cmath>
#include <numbers>

#include "zerograd/kernels/attention/rope.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

// Frequencies of rotary positions. Readers of configs link this file without the kernels.
namespace zg {
namespace {

constexpr double turn = 2.0 * std::numbers::pi;

void check_positive(const char* field, double value) {
  if (!(value > 0.0 && std::isfinite(value)))
    throw ConfigError(fmt::format("rope: {}: expected a number above 0, got {}", field, value));
}

/// Llama 3.1's rule for one frequency.
double llama3_frequency(const RopeOptions& o, double frequency) {
  const double turns = static_cast<double>(o.original_positions) * frequency / turn;
  if (turns < o.low_freq_factor) return frequency / o.factor;
  if (turns > o.high_freq_factor) return frequency;
  const double smooth = (turns - o.low_freq_factor) / (o.high_freq_factor - o.low_freq_factor);
  return (1.0 - smooth) * frequency / o.factor + smooth * frequency;
}

/// The index, as a real number, of the frequency that makes `turns` turns in the longest text.
double yarn_index(const RopeOptions& o, int64_t R, double turns) {
  return static_cast<double>(R) *
         std::log(static_cast<double>(o.original_positions) / (turns * turn)) /
         (2.0 * std::log(o.theta));
}

double yarn_frequency(const RopeOptions& o, int64_t R, int64_t i, double frequency) {
  double low = yarn_index(o, R, o.beta_fast), high = yarn_index(o, R, o.beta_slow);
  if (o.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(R - 1));
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
  return frequency / o.factor * ramp + frequency * (1.0 - ramp);
}

}  // namespace

const char* name_of(RopeScaling scaling) {
  constexpr const char* names[] = {"none", "linear", "llama3", "yarn"};
  return names[static_cast<size_t>(scaling)];
}

void validate(const RopeOptions& o) {
  if (!(o.theta > 1.0 && std::isfinite(o.theta)))
    throw ConfigError(fmt::format("rope: theta: expected a number above 1, got {}", o.theta));
  check_positive("factor", o.factor);
  check_positive("original_positions", static_cast<double>(o.original_positions));
  check_positive("low_freq_factor", o.low_freq_factor);
  check_positive("beta_slow", o.beta_slow);
  if (!(o.high_freq_factor > o.low_freq_factor && std::isfinite(o.high_freq_factor)))
    throw ConfigError(fmt::format(
        "rope: high_freq_factor: expected a finite number above low_freq_factor {}, got {}",
        o.low_freq_factor, o.high_freq_factor));
  if (!(o.beta_fast >= o.beta_slow && std::isfinite(o.beta_fast)))
    throw ConfigError(
        fmt::format("rope: beta_fast: expected a finite number from beta_slow {} on, got {}",
                    o.beta_slow, o.beta_fast));
  if (!(o.attention_factor >= 0.0 && std::isfinite(o.attention_factor)))
    throw ConfigError(fmt::format(
        "rope: attention_factor: expected a finite number from 0 on, got {}", o.attention_factor));
}

std::vector<float> rope_frequencies(const RopeOptions& options, int64_t R) {
  validate(options);
  if (R < 2 || R % 2 != 0)
    throw ConfigError(
        fmt::format("rope: expected an even number of rotated elements from 2 on, got {}", R));
  std::vector<float> frequencies;
  for (int64_t i = 0; i < R / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(R);
    double frequency = static_cast<double>(static_cast<float>(std::pow(options.theta, -exponent)));
    if (options.scaling == RopeScaling::linear) frequency /= options.factor;
    if (options.scaling == RopeScaling::llama3) frequency = llama3_frequency(options, frequency);
    if (options.scaling == RopeScaling::yarn)
      frequency = yarn_frequency(options, R, i, std::pow(options.theta, -exponent));
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

}  // namespace zg
