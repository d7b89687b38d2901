#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "zerograd/kernels/attention/rope.h"
#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/text/format.h"

// Frequencies of rotary positions. Readers of configs link this file without the kernels.
namespace zg {
namespace {

constexpr double turn = 2.0 * std::numbers::pi;

void check_positive(const char* field, double value) {
  if (!(value > 0.0 && std::isfinite(value)))
    raise<ConfigError>("rope: {}: expected a number above 0, got {}", field, value);
}

// --- PyTorch's powers, to the bit ---

/// A sum of two floats that are not rounded to one.
struct TwoFloats {
  float high, low = 0.0f;
};

TwoFloats operator+(TwoFloats a, TwoFloats b) {
  const float sum = a.high + b.high, taken = sum - a.high;
  return {sum, (a.high - (sum - taken)) + (b.high - taken) + (a.low + b.low)};
}
/// The same for |a| >= |b|.
TwoFloats add_smaller(TwoFloats a, TwoFloats b) {
  const float sum = a.high + b.high;
  return {sum, a.high - sum + b.high + a.low + b.low};
}
TwoFloats operator*(TwoFloats a, TwoFloats b) {
  const float product = a.high * b.high, rest = std::fma(a.high, b.high, -product);
  return {product, std::fma(a.high, b.low, std::fma(a.low, b.high, rest))};
}
TwoFloats square(TwoFloats a) {
  const float product = a.high * a.high;
  return {product, std::fma(a.high + a.high, a.low, std::fma(a.high, a.high, -product))};
}
TwoFloats operator/(TwoFloats a, TwoFloats b) {
  const float inverse = 1.0f / b.high, quotient = a.high * inverse;
  const float rest = std::fma(inverse, a.high, -quotient);
  const float error = std::fma(-b.low, inverse, std::fma(-b.high, inverse, 1.0f));
  return {quotient, std::fma(quotient, error, std::fma(a.low, inverse, rest))};
}

TwoFloats logarithm(float x) {
  const int exponent = std::ilogb(x * (1.0f / 0.75f));
  const float mantissa = std::ldexp(x, -exponent);
  const TwoFloats m{mantissa}, y = (TwoFloats{-1.0f} + m) / (TwoFloats{1.0f} + m), y2 = square(y);
  float t = 0.240320354700088500976562f;
  t = std::fma(t, y2.high, 0.285112679004669189453125f);
  t = std::fma(t, y2.high, 0.400007992982864379882812f);
  const TwoFloats third{0.66666662693023681640625f, 3.69183861259614332084311e-09f};
  const TwoFloats ln2{0.69314718246459960938f, -1.904654323148236017e-09f};
  const TwoFloats sum =
      add_smaller(ln2 * TwoFloats{static_cast<float>(exponent)}, {2.0f * y.high, 2.0f * y.low});
  return add_smaller(sum, y2 * y * (y2 * TwoFloats{t} + third));
}

float exponential(TwoFloats x) {
  const float whole = std::rint((x.high + x.low) * std::numbers::log2e_v<float>);
  const TwoFloats rest =
      x + TwoFloats{whole * -0.693145751953125f} + TwoFloats{whole * -1.428606765330187045e-06f};
  const float high = rest.high + rest.low;
  const TwoFloats r{high, rest.high - high + rest.low};
  float t = 0.00136324646882712841033936f;
  for (const float term : {0.00836596917361021041870117f, 0.0416710823774337768554688f,
                           0.166665524244308471679688f, 0.499999850988388061523438f})
    t = std::fma(t, r.high, term);
  const TwoFloats sum = add_smaller({1.0f}, add_smaller(r, square(r) * TwoFloats{t}));
  return std::ldexp(sum.high + sum.low, static_cast<int>(whole));
}

/// theta^(2 i / R) in f32, as torch.pow() computes these R / 2 powers with AVX-512: 32 at a time by
/// SLEEF's powf with an error of 1 ulp (sleefsimdsp.c), and the remainder by the C library's. Ours
/// is rounded correctly; of 13,888 such powers 10 differ from glibc 2.36's by an ulp.
std::vector<float> powers_of(double theta, int64_t R) {
  constexpr int64_t at_once = 32;
  const float base = static_cast<float>(theta);
  std::vector<float> powers;
  for (int64_t i = 0; i < R / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(R);
    powers.push_back(i < R / 2 / at_once * at_once
                         ? exponential(logarithm(base) * TwoFloats{exponent})
                         : portable::pow(base, exponent));
  }
  return powers;
}

// --- scaling: f32 operations in transformers' order (modeling_rope_utils.py) ---

/// Llama 3.1's rule for one frequency.
float llama3_frequency(const RopeOptions& o, float frequency) {
  const float factor = static_cast<float>(o.factor);
  const auto longest = static_cast<double>(o.original_positions);
  const float length = 1.0f / frequency * static_cast<float>(turn);
  if (length > static_cast<float>(longest / o.low_freq_factor)) return frequency / factor;
  if (length < static_cast<float>(longest / o.high_freq_factor)) return frequency;
  const float turns = 1.0f / length * static_cast<float>(longest);
  const float smooth = (turns - static_cast<float>(o.low_freq_factor)) /
                       static_cast<float>(o.high_freq_factor - o.low_freq_factor);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

/// The index, as a real number, of the frequency that makes `turns` turns in the longest text.
double yarn_index(const RopeOptions& o, int64_t R, double turns) {
  return static_cast<double>(R) *
         portable::log(static_cast<double>(o.original_positions) / (turns * turn)) /
         (2.0 * portable::log(o.theta));
}

float yarn_frequency(const RopeOptions& o, int64_t R, int64_t i, float power) {
  double low = yarn_index(o, R, o.beta_fast), high = yarn_index(o, R, o.beta_slow);
  if (o.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(R - 1));
  if (low == high) high += 0.001;
  const float ramp =
      std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low),
                 0.0f, 1.0f);
  const float kept = 1.0f - ramp;
  return 1.0f / (power * static_cast<float>(o.factor)) * (1.0f - kept) + 1.0f / power * kept;
}

}  // namespace

const char* name_of(RopeScaling scaling) {
  constexpr const char* names[] = {"none", "linear", "llama3", "yarn", "longrope"};
  return names[static_cast<size_t>(scaling)];
}

void validate(const RopeOptions& o) {
  if (!(o.theta > 1.0 && o.theta <= double{std::numeric_limits<float>::max()}))
    raise<ConfigError>("rope: theta: expected a number above 1, got {}", o.theta);
  check_positive("factor", o.factor);
  check_positive("original_positions", static_cast<double>(o.original_positions));
  check_positive("low_freq_factor", o.low_freq_factor);
  check_positive("beta_slow", o.beta_slow);
  if (!(o.high_freq_factor > o.low_freq_factor && std::isfinite(o.high_freq_factor)))
    raise<ConfigError>(
        "rope: high_freq_factor: expected a finite number above low_freq_factor {}, got {}",
        o.low_freq_factor, o.high_freq_factor);
  if (!(o.beta_fast >= o.beta_slow && std::isfinite(o.beta_fast)))
    raise<ConfigError>("rope: beta_fast: expected a finite number from beta_slow {} on, got {}",
                       o.beta_slow, o.beta_fast);
  if (o.scaling == RopeScaling::longrope && o.attention_factor == 0.0 && o.original_positions < 2)
    raise<ConfigError>(
        "rope: original_positions: longrope divides by its logarithm; expected 2 or more, got {}",
        o.original_positions);
  for (const std::vector<double>* factors : {&o.short_factors, &o.long_factors})
    for (const double factor : *factors) check_positive("factors of longrope", factor);
  if (!(o.attention_factor >= 0.0 && std::isfinite(o.attention_factor)))
    raise<ConfigError>("rope: attention_factor: expected a finite number from 0 on, got {}",
                       o.attention_factor);
}

std::vector<float> rope_frequencies(const RopeOptions& options, int64_t R, int64_t positions) {
  validate(options);
  const bool is_long = positions > options.original_positions;
  const std::vector<double>& factors = is_long ? options.long_factors : options.short_factors;
  if (options.scaling == RopeScaling::longrope && std::ssize(factors) != R / 2)
    raise<ConfigError>(
        "rope: {}_factors: expected {} numbers, one for each pair of the {} rotated elements of a "
        "head, got {}",
        is_long ? "long" : "short", R / 2, R, factors.size());
  if (R < 2 || R % 2 != 0)
    raise<ConfigError>("rope: expected an even number of rotated elements from 2 on, got {}", R);
  std::vector<float> frequencies = powers_of(options.theta, R);
  for (int64_t i = 0; i < R / 2; ++i) {
    float& frequency = frequencies[static_cast<size_t>(i)];
    if (options.scaling == RopeScaling::yarn) {
      frequency = yarn_frequency(options, R, i, frequency);
      continue;
    }
    if (options.scaling == RopeScaling::longrope)
      frequency *= static_cast<float>(factors[static_cast<size_t>(i)]);
    frequency = 1.0f / frequency;
    if (options.scaling == RopeScaling::linear) frequency /= static_cast<float>(options.factor);
    if (options.scaling == RopeScaling::llama3) frequency = llama3_frequency(options, frequency);
  }
  return frequencies;
}

}  // namespace zg
