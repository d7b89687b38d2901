#include "tests/fakes/cuda/precision.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

namespace zg::emulator {
namespace {

constexpr int terms = 16;

uint64_t read_seed() {
  const char* const text = std::getenv("ZG_EMULATOR_SEED");
  if (!text || !*text) return 0;
  char* end = nullptr;
  const uint64_t seed = std::strtoull(text, &end, 10);
  if (*end) {  // not die(), which prints the seed
    std::fprintf(stderr, "emulator: ZG_EMULATOR_SEED is %s; expected a whole number\n", text);
    std::abort();
  }
  return seed;
}

template <class T>
T by_the_library(Function function, T x, T y) {
  switch (function) {
    case Function::exp:
      return std::exp(x);
    case Function::expm1:
      return std::expm1(x);
    case Function::log:
      return std::log(x);
    case Function::tanh:
      return std::tanh(x);
    case Function::pow:
      return std::pow(x, y);
    case Function::erf:
      return std::erf(x);
    case Function::erfc:
      return std::erfc(x);
    case Function::log1p:
      return std::log1p(x);
    case Function::reciprocal_root:
      return T{1} / std::sqrt(x);
    case Function::quotient:
      return x / y;
    default:
      return std::exp2(x);
  }
}

/// How a seed adds 16 products to an accumulator.
struct Order {
  enum class Way { in_order, shuffled, grouped, cut } way = Way::in_order;
  int k[terms], group = terms;
  explicit Order(uint64_t seed) {
    for (int i = 0; i < terms; ++i) k[i] = i;
    if (seed == 0) return;
    way = seed % 3 == 1 ? Way::shuffled : seed % 3 == 2 ? Way::grouped : Way::cut;
    group = mixed(seed, 0) & 1 ? 4 : 8;
    for (int i = terms - 1; i > 0; --i)
      std::swap(k[i], k[mixed(seed, static_cast<uint64_t>(i)) % static_cast<uint64_t>(i + 1)]);
  }
};

float cut(double x) {
  const auto near = static_cast<float>(x);
  return std::fabs(static_cast<double>(near)) > std::fabs(x) ? std::nextafter(near, 0.0f) : near;
}

/// The step of a fixed-point number of 24 bits that holds `largest`.
double unit_below(double largest) {
  constexpr int bits = 24, fraction = 52;  // of the significands of f32 and double
  const uint64_t power = std::bit_cast<uint64_t>(largest) >> fraction << fraction;
  return std::bit_cast<double>(power - (uint64_t{bits - 1} << fraction));
}

/// Products of two-byte floats are exact in double.
void add_cut(float* c, const float* a, const float* b, int stride, int columns) {
  constexpr int most_columns = 128;
  double term[terms + 1][most_columns], largest[most_columns], per_unit[most_columns];
  int units[most_columns];
  const auto for_columns = [&](const auto& f) {
    for (int j = 0; j < columns; ++j) f(j);
  };
  for_columns([&](int j) {
    term[terms][j] = static_cast<double>(c[j]);
    largest[j] = std::fabs(term[terms][j]);
    units[j] = 0;
  });
  for (int k = 0; k < terms; ++k)
    for_columns([&](int j) {
      term[k][j] = static_cast<double>(a[k]) * static_cast<double>(b[k * stride + j]);
      const double size = std::fabs(term[k][j]);
      largest[j] = size > largest[j] || std::isnan(size) ? size : largest[j];  // NaN stays
    });
  const auto is_plain = [&](int j) { return largest[j] > 0.0 && std::isfinite(largest[j]); };
  for_columns([&](int j) { per_unit[j] = is_plain(j) ? 1.0 / unit_below(largest[j]) : 0.0; });
  for (const auto& terms_of_k : term)
    for_columns([&](int j) { units[j] += static_cast<int>(terms_of_k[j] * per_unit[j]); });
  for_columns([&](int j) {
    double sum = 0.0;
    if (is_plain(j))
      sum = units[j] * unit_below(largest[j]);
    else
      for (const auto& terms_of_k : term) sum += terms_of_k[j];
    c[j] = cut(sum);
  });
}

}  // namespace

uint64_t environment_seed() {
  static const uint64_t seed = read_seed();
  return seed;
}

uint64_t mixed(uint64_t a, uint64_t b) {  // splitmix64
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

float evaluate(Function function, float x, float y) {
  const uint64_t seed = environment_seed();
  if (seed == 0) return by_the_library(function, x, y);
  // .ftz: subnormal arguments and results are 0.
  if (function == Function::power_of_two && std::fpclassify(x) == FP_SUBNORMAL) x = 0.0f;
  auto result = static_cast<float>(
      by_the_library<double>(function, static_cast<double>(x), static_cast<double>(y)));
  if (function == Function::power_of_two && std::fpclassify(result) == FP_SUBNORMAL) result = 0.0f;
  // At these arguments the results are documented.
  const bool known = result == 0.0f || !std::isfinite(result) || x == 0.0f || std::isinf(x) ||
                     (function == Function::pow && (x == 1.0f || y == 0.0f));
  if (known) return result;
  const int error = largest_error(function);
  const uint64_t arguments =
      uint64_t{std::bit_cast<uint32_t>(x)} << 32 | std::bit_cast<uint32_t>(y);
  const auto steps =
      static_cast<int>(mixed(mixed(seed, static_cast<uint64_t>(function)), arguments) %
                       static_cast<uint64_t>(2 * error + 1)) -
      error;
  const float most = std::copysign(std::numeric_limits<float>::max(), result);
  for (int i = 0; i < std::abs(steps); ++i)
    result = std::nextafter(result, steps < 0 ? 0.0f : most);
  return result;
}

void add_products(float* c, const float* a, const float* b, int stride, int columns) {
  static const Order order(environment_seed());
  switch (order.way) {
    case Order::Way::cut:
      return add_cut(c, a, b, stride, columns);
    case Order::Way::grouped:
      for (int first = 0; first < terms; first += order.group)
        for (int j = 0; j < columns; ++j) {
          float sum = 0.0f;
          for (int i = first; i < first + order.group; ++i)
            sum += a[order.k[i]] * b[order.k[i] * stride + j];
          c[j] += sum;
        }
      return;
    default:
      for (int k : order.k)
        for (int j = 0; j < columns; ++j) c[j] += a[k] * b[k * stride + j];
  }
}

}  // namespace zg::emulator
