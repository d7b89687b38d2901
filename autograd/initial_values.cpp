#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "zerograd/autograd/parameter.h"
#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/random.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

using Pair = std::array<double, 2>;

// 52 random bits plus half a step: never 0, because the logarithm of 0 is infinite.
double open_uniform(uint32_t high, uint32_t low) {
  const uint64_t bits = ((uint64_t{high} << 32) | low) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

/// The random numbers of elements 2 pair and 2 pair + 1.
struct PairNumbers {
  uint64_t seed, name, pair;
  /// Two numbers in (0, 1); others for each attempt.
  Pair operator()(uint64_t attempt = 0) const {
    const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
    const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
    const Philox::Block words = Philox::block({low(pair), high(pair), low(name), high(name)},
                                              seed + attempt * 0x9E3779B97F4A7C15u);
    return {open_uniform(words[0], words[1]), open_uniform(words[2], words[3])};
  }
};

Pair constant_pair(const Init& init, const PairNumbers&) {
  const double value = init.kind == Init::Kind::ones ? 1.0 : 0.0;
  return {value, value};
}

Pair uniform_pair(const Init& init, const PairNumbers& numbers) {
  const auto [u, v] = numbers();
  return {init.stddev * (2.0 * u - 1.0), init.stddev * (2.0 * v - 1.0)};
}

Pair normal_pair(const Init& init, const PairNumbers& numbers) {
  const auto [u, v] = numbers();
  const double radius = std::sqrt(-2.0 * portable::log(u));
  const double angle = 2.0 * std::numbers::pi * v;
  return {init.stddev * (radius * portable::cos(angle)),
          init.stddev * (radius * portable::sin(angle))};
}

/// Proposals are uniform between the limits, cut where less than 2^-53 of the values lie, and are
/// accepted with the density divided by its largest.
Pair truncated_pair(const Init& init, const PairNumbers& numbers) {
  const TruncatedNormal& t = init.truncated;
  const auto standard = [&](double x) { return std::clamp((x - t.mean) / t.std, -1e100, 1e100); };
  const double low = standard(t.a), high = standard(t.b), mode = std::clamp(0.0, low, high);
  const double reach = std::min(9.0, 40.0 / std::max(std::fabs(mode), 1.0));
  const double begin = std::max(low, mode - reach), width = std::min(high, mode + reach) - begin;
  Pair values;
  for (size_t side = 0; side < 2; ++side)
    for (uint64_t attempt = side;; attempt += 2) {
      const auto [u, v] = numbers(attempt);
      const double x = begin + width * u;
      if (2.0 * portable::log(v) > (mode - x) * (mode + x)) continue;
      values[side] = std::clamp(t.mean + t.std * x, t.a, t.b);
      break;
    }
  return values;
}

/// In one order of additions on every machine; eight sums, because one would wait for itself.
double inner_product(const double* a, const double* b, int64_t n) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int64_t k = 0; k < 8; ++k) sums[k] += a[i + k] * b[i + k];
  for (; i < n; ++i) sums[i % 8] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/// Gram-Schmidt of normal vectors: the Q of the QR decomposition whose R has a positive diagonal,
/// as torch.nn.init.orthogonal_ chooses the signs. The vectors are the columns of the matrix, or
/// its rows if they are fewer.
std::vector<float> orthogonal_values(const Init& init, uint64_t seed, uint64_t name) {
  const int64_t numel = init.whole.numel();
  if (numel == 0) return {};
  const int64_t rows = init.whole[0], columns = numel / rows;
  const int64_t count = std::min(rows, columns), length = std::max(rows, columns);
  const auto place = [&](int64_t i) {  // of element i of the matrix among the vectors
    return static_cast<size_t>(rows < columns ? i : i % columns * length + i / columns);
  };
  std::vector<double> q(static_cast<size_t>(numel));
  const Init normal = Init::normal(1.0f);
  for (int64_t i = 0; i < numel; ++i) {
    const Pair pair = normal_pair(normal, {seed, name, static_cast<uint64_t>(i / 2)});
    q[place(i)] = pair[static_cast<size_t>(i % 2)];
  }
  for (int64_t i = 0; i < count; ++i) {
    double* const x = q.data() + i * length;
    double before = 0.0, after = std::sqrt(inner_product(x, x, length));
    do {  // again if little is left of x, because rounding errors are then a larger part of it
      before = after;
      for (const double* y = q.data(); y != x; y += length) {
        const double product = inner_product(x, y, length);
        for (int64_t k = 0; k < length; ++k) x[k] -= product * y[k];
      }
      after = std::sqrt(inner_product(x, x, length));
    } while (after < 1e-3 * before);
    for (int64_t k = 0; k < length; ++k) x[k] /= after;
  }
  std::vector<float> values(q.size());
  for (int64_t i = 0; i < numel; ++i)
    values[static_cast<size_t>(i)] = static_cast<float>(init.stddev * q[place(i)]);
  return values;
}

/// How values of a kind are computed: those of two neighbours from their own random numbers, or all
/// of them together.
struct Computed {
  Pair (*pair)(const Init&, const PairNumbers&) = nullptr;
  std::vector<float> (*whole)(const Init&, uint64_t seed, uint64_t name) = nullptr;
};

const Computed& computed(Init::Kind kind) {
  static constexpr Computed rows[] = {
      /* zeros */ {constant_pair},
      /* ones */ {constant_pair},
      /* normal */ {normal_pair},
      /* uniform */ {uniform_pair},
      /* truncated_normal */ {truncated_pair},
      /* orthogonal */ {.whole = orthogonal_values},
  };
  return rows[static_cast<size_t>(kind)];
}

}  // namespace

double calculate_gain(Nonlinearity nonlinearity, double slope) {
  const double gains[] = {
      1.0, 1.0, 5.0 / 3.0, std::numbers::sqrt2, std::sqrt(2.0 / (1.0 + slope * slope)), 0.75};
  return gains[static_cast<size_t>(nonlinearity)];
}

Init Init::truncated_normal(const TruncatedNormal& t) {
  if (!(t.std > 0 && t.a < t.b))
    raise<ConfigError>(
        "truncated_normal: std is {:g}, a is {:g}, b is {:g}; expected std > 0 and a < b", t.std,
        t.a, t.b);
  return {.kind = Kind::truncated_normal, .truncated = t};
}

bool Init::is_computed_whole() const { return computed(kind).whole != nullptr; }

Init Init::of(const std::string& name, const Shape& shape) const {
  if (fan == Fan::none && !is_computed_whole()) return *this;
  if (shape.rank() < 2)
    raise<ShapeError>(
        "initial values: '{}' {} has no numbers of outputs and inputs; expected rank 2 or more",
        name, shape);
  Init init = *this;
  init.whole = shape;
  const auto numel = static_cast<double>(shape.numel());
  if (fan == Fan::none || numel == 0) return init;
  const double in = numel / static_cast<double>(shape[0]);
  const double out = numel / static_cast<double>(shape[1]);
  init.stddev /= std::sqrt(fan == Fan::in ? in : fan == Fan::out ? out : (in + out) / 2.0);
  init.fan = Fan::none;
  return init;
}

Init prepared(const Init& init, uint64_t seed, const std::string& name) {
  if (!init.is_computed_whole() || init.values) return init;
  Init ready = init;
  ready.values = std::make_shared<const std::vector<float>>(
      computed(init.kind).whole(init, seed, hash_name(name.c_str())));
  return ready;
}

void initialise(const Init& init, uint64_t seed, const std::string& name, int64_t begin,
                std::span<float> values) {
  if (values.empty()) return;
  const bool computed_whole = init.is_computed_whole();
  if (init.fan != Fan::none || (computed_whole && init.whole.rank() == 0))
    raise<ConfigError>("initialise: the values of '{}' depend on its shape; call Init::of()", name);
  if (computed_whole) {
    const Init ready = prepared(init, seed, name);
    std::copy_n(ready.values->begin() + begin, values.size(), values.begin());
    return;
  }
  const uint64_t hash = hash_name(name.c_str());
  for (uint64_t i = 0; i < values.size();) {
    const uint64_t element = static_cast<uint64_t>(begin) + i;
    const Pair pair = computed(init.kind).pair(init, {seed, hash, element / 2});
    for (uint64_t side = element % 2; side < 2 && i < values.size(); ++side, ++i)
      values[i] = static_cast<float>(pair[side]);
  }
}

void initialise(const Init& init, uint64_t seed, const std::string& name, const Slice& slice,
                int64_t begin, std::span<float> values) {
  const Init ready = prepared(init, seed, name);
  for (size_t done = 0; done < values.size();) {
    const int64_t element = begin + static_cast<int64_t>(done);
    const auto count = std::min(values.size() - done, static_cast<size_t>(slice.run_left(element)));
    initialise(ready, seed, name, slice.whole_index(element), values.subspan(done, count));
    done += count;
  }
}

}  // namespace zg
