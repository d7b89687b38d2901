#include "zerograd/kernels/attention/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

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

/// The factor of cosines and sines.
double scale_of(const RopeOptions& o) {
  if (o.scaling != RopeScaling::yarn) return 1.0;
  if (o.attention_factor > 0.0) return o.attention_factor;
  return o.factor <= 1.0 ? 1.0 : 0.1 * std::log(o.factor) + 1.0;
}

template <class T>
Tensor table_of(const RopeOptions& options, int64_t R, int64_t positions, const Device& device) {
  const std::vector<float> frequencies = rope_frequencies(options, R);
  const double scale = scale_of(options);
  std::vector<T> table(static_cast<size_t>(positions * R));
  T* row = table.data();
  for (int64_t p = 0; p < positions; ++p, row += R)
    for (int64_t i = 0; i < R / 2; ++i) {
      const float angle = static_cast<float>(p) * frequencies[static_cast<size_t>(i)];
      row[i] = static_cast<T>(std::cos(static_cast<double>(angle)) * scale);
      row[R / 2 + i] = static_cast<T>(std::sin(static_cast<double>(angle)) * scale);
    }
  return Tensor::from(table, {positions, R}, device);
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
  if (!(o.high_freq_factor > o.low_freq_factor))
    throw ConfigError(
        fmt::format("rope: high_freq_factor: expected more than low_freq_factor {}, got {}",
                    o.low_freq_factor, o.high_freq_factor));
  if (!(o.beta_fast >= o.beta_slow))
    throw ConfigError(fmt::format("rope: beta_fast: expected at least beta_slow {}, got {}",
                                  o.beta_slow, o.beta_fast));
  if (!(o.attention_factor >= 0.0))
    throw ConfigError(
        fmt::format("rope: attention_factor: expected 0 or more, got {}", o.attention_factor));
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

Tensor rope_table(const RopeOptions& options, int64_t R, int64_t positions, DType dtype,
                  const Device& device) {
  if (positions < 1)
    throw ShapeError(fmt::format("rope_table: positions is {}; expected 1 or more", positions));
  if (dtype == DType::f64) return table_of<double>(options, R, positions, device);
  if (dtype == DType::f32) return table_of<float>(options, R, positions, device);
  throw DTypeError(fmt::format("rope_table: the dtype is {}; expected f32 or f64", dtype));
}

void validate(const Rope& a) {
  const char* op = "rope";
  check_dtype(op, "x", a.x, floating);
  check_like(op, "y", a.y, a.x);
  if (a.x.shape().rank() != 3)
    throw ShapeError(fmt::format("rope: x has shape {}; expected [B, T, heads * D]", a.x.shape()));
  if (a.heads < 1 || a.x.extent(2) % a.heads != 0)
    throw ShapeError(fmt::format("rope: heads is {}; expected a divisor of x's last axis {}",
                                 a.heads, a.x.extent(2)));
  check_dtype(op, "table", a.table, accumulator(a.x.dtype()));
  const int64_t D = a.x.extent(2) / a.heads;
  const Shape& table = a.table.shape();
  if (table.rank() != 2 || table[1] < 2 || table[1] % 2 != 0 || table[1] > D)
    throw ShapeError(
        fmt::format("rope: table has shape {}; expected [positions, R] with R even and at most the "
                    "head size {}",
                    table, D));
  check_device(op, {&a.x, &a.y, &a.table, &a.positions});
  if (a.positions) {
    check_dtype(op, "positions", a.positions, DType::i32);
    check_shape(op, "positions", a.positions, {a.x.extent(0), a.x.extent(1)});
  } else if (a.first_position < 0 || a.first_position + a.x.extent(1) > table[0]) {
    throw ShapeError(fmt::format("rope: positions {} to {} are needed; expected 0 to {}",
                                 a.first_position, a.first_position + a.x.extent(1) - 1,
                                 table[0] - 1));
  }
}

ZG_KERNEL(Rope, rope)

}  // namespace zg
