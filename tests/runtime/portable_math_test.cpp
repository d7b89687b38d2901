#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "zerograd/runtime/portable_math.h"

using namespace zg;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

/// The largest error in ulp over 20,000 arguments: numbers from `low` to `high`, or 2 to such a
/// number with a random sign. The reference is the C library's function of long double, which has
/// 64 bits.
template <class F = double (*)(double), class Reference = long double (*)(long double)>
double worst_error(F f, Reference reference, double low, double high, bool is_exponent) {
  std::mt19937_64 random(1);
  double worst = 0;
  for (int i = 0; i < 20000; ++i) {
    double x = low + (high - low) * std::ldexp(static_cast<double>(random() >> 11), -53);
    if (is_exponent) x = std::exp2(x) * (random() % 2 ? 1 : -1);
    const long double expected = reference(static_cast<long double>(x));
    const double got = f(x);
    if (got == static_cast<double>(expected)) continue;
    int exponent = 0;
    std::frexp(static_cast<double>(expected), &exponent);
    const long double ulp = std::ldexp(1.0L, std::max(exponent, -1021) - 53);
    const auto error = static_cast<double>(std::fabs(got - expected) / ulp);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

long double size_of(long double x) { return std::fabs(x); }

}  // namespace

TEST_CASE("portable functions have errors of at most 1 ulp, tanh, erf, erfc, expm1 and log2 of 2") {
  const auto check = [](const char* name, double (*own)(double),
                        long double (*reference)(long double), double bar,
                        std::initializer_list<std::pair<double, double>> ranges) {
    CAPTURE(name);
    for (const auto& [low, high] : ranges) {
      CAPTURE(low);
      CHECK(worst_error(own, reference, low, high, false) < bar);
    }
    CHECK(worst_error(own, reference, -60, -1, true) < bar);
  };
  check("tanh", portable::tanh, std::tanh, 2, {{-1, 1}, {0.4, 0.7}, {-23, 23}});
  check("erf", portable::erf, std::erf, 2, {{-1, 1}, {0.7, 0.8}, {-7, 7}});
  check("erfc", portable::erfc, std::erfc, 2, {{-1, 1}, {0.7, 1.5}, {1.5, 8}, {-7, 26}, {26, 28}});
  check("expm1", portable::expm1, std::expm1, 2, {{-1, 1}, {-45, 60}, {-745, 709}});
  check("log1p", portable::log1p, std::log1p, 1, {{-0.9999, 2}, {0, 1e10}});
  check("atan", portable::atan, std::atan, 1, {{-1, 1}, {0.6, 3}, {-100, 100}});
  check("exp2", portable::exp2, std::exp2, 1, {{-1, 1}, {-1021, 1024}});
  check("exp", portable::exp, std::exp, 1, {{-1, 1}, {-745, 709.7}});
  const auto own_log = [](double x) { return portable::log(std::fabs(x)); };
  const auto log = [](long double x) { return std::log(size_of(x)); };
  CHECK(worst_error(own_log, log, 0.5, 2, false) < 1);
  CHECK(worst_error(own_log, log, -1074, 1023.9, true) < 1);
  const auto own_log2 = [](double x) { return portable::log2(std::fabs(x)); };
  const auto log2 = [](long double x) { return std::log2(size_of(x)); };
  CHECK(worst_error(own_log2, log2, 0.5, 2, false) < 2);
  CHECK(worst_error(own_log2, log2, -1074, 1023.9, true) < 2);
  for (const auto& [low, high] : {std::pair{-60.0, 4.0}, {4.0, 19.9}, {19.9, 21.0}, {21.0, 62.0}}) {
    CAPTURE(low);
    CHECK(worst_error(portable::sin, std::sin, low, high, true) < 1);
    CHECK(worst_error(portable::cos, std::cos, low, high, true) < 1);
  }
  for (const double base : {0.1, 0.9, 1.0001, 2.0, 10000.0}) {
    CAPTURE(base);
    const auto own = [base](double y) { return portable::pow(base, y); };
    const auto pow = [base](long double y) { return std::pow(static_cast<long double>(base), y); };
    CHECK(worst_error(own, pow, -20, 6, true) < 1);
  }
  for (const double y : {0.5, -0.8, 2.5, -1.0, 100.3}) {
    CAPTURE(y);
    const auto own = [y](double x) { return portable::pow(std::fabs(x), y); };
    const auto pow = [y](long double x) {
      return std::pow(size_of(x), static_cast<long double>(y));
    };
    CHECK(worst_error(own, pow, -9, 9, true) < 1);
  }
}

TEST_CASE("portable functions of f32 are those of f64, rounded") {
  const std::pair<float (*)(float), double (*)(double)> functions[] = {
      {portable::exp, std::exp},   {portable::log, std::log},     {portable::sin, std::sin},
      {portable::cos, std::cos},   {portable::tanh, std::tanh},   {portable::erf, std::erf},
      {portable::erfc, std::erfc}, {portable::expm1, std::expm1}, {portable::log1p, std::log1p}};
  for (size_t f = 0; f < std::size(functions); ++f)
    for (float x = 1e-4f; x < 80; x *= 1.001f) {
      CAPTURE(f);
      CAPTURE(x);
      REQUIRE(functions[f].first(x) == static_cast<float>(functions[f].second(double{x})));
      REQUIRE(portable::pow(x, x / 4) == static_cast<float>(std::pow(double{x}, double{x / 4})));
    }
}

TEST_CASE("portable functions give the sines of large angles") {
  // x is 6381956970095103 * 2^797, the f64 nearest to a multiple of pi / 2 (Muller, Elementary
  // Functions, 11).
  const double x = std::ldexp(6381956970095103.0, 797);
  CHECK(portable::cos(x) == -4.68716592425462761112e-19);
  CHECK(portable::sin(x) == 1.0);
  CHECK(portable::sin(-x) == -1.0);
  CHECK(portable::sin(1e22) == -0.8522008497671888);
  CHECK(portable::cos(std::numeric_limits<double>::max()) == -0.9999876894265599);
}

TEST_CASE("portable functions have the special values of C") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double values[] = {0.0, -0.0,  1.0,    -1.0,   2.0,     -2.0, 3.0, -3.0, 0.5, -0.5,
                           2.5, 1e308, -1e308, 5e-324, -5e-324, 1e22, inf, -inf, nan};
  const auto check = [](double got, double expected) {
    CHECK(std::isnan(got) == std::isnan(expected));
    if (!std::isnan(expected))
      CHECK(std::bit_cast<int64_t>(got) == std::bit_cast<int64_t>(expected));
  };
  const auto is_special = [](double value) {
    const double size = std::fabs(value);
    return std::isnan(value) || std::isinf(value) || size <= 5e-324 || size == 1 || size == 2;
  };
  for (const double x : values) {
    CAPTURE(x);
    const double expected[] = {std::exp(x),   std::log(x),   std::sin(x),  std::cos(x),
                               std::tanh(x),  std::erf(x),   std::erfc(x), std::exp2(x),
                               std::expm1(x), std::log1p(x), std::log2(x), std::atan(x)};
    const double got[] = {portable::exp(x),   portable::log(x),  portable::sin(x),
                          portable::cos(x),   portable::tanh(x), portable::erf(x),
                          portable::erfc(x),  portable::exp2(x), portable::expm1(x),
                          portable::log1p(x), portable::log2(x), portable::atan(x)};
    for (size_t i = 0; i < std::size(got); ++i) {
      CAPTURE(i);
      if (is_special(expected[i])) check(got[i], expected[i]);
    }
    for (const double y : values) {
      CAPTURE(y);
      if (is_special(std::pow(x, y))) check(portable::pow(x, y), std::pow(x, y));
      const auto a = static_cast<float>(x), b = static_cast<float>(y);
      if (is_special(std::pow(a, b))) check(portable::pow(a, b), std::pow(a, b));
    }
  }
}

TEST_CASE("portable functions have the same bits everywhere") {
  uint64_t hash = 0;
  const auto add = [&](double value) { hash = hash * 31 + std::bit_cast<uint64_t>(value); };
  for (int i = 1; i <= 10000; ++i) {
    const double x = i * 0.01;
    add(portable::exp(50 - x));
    add(portable::log(x));
    add(portable::sin(x * x * x));
    add(portable::cos(x * x * x));
    add(portable::pow(x, -0.8));
    add(portable::tanh(x / 4));
    add(portable::erf(x / 16));
    add(portable::erfc(x / 4));
    add(portable::exp2(50 - x));
    add(portable::expm1(50 - x));
    add(portable::log1p(x - 1));
    add(portable::pow(static_cast<float>(x), -0.8f));
  }
  CHECK(hash == 17141470383234387081u);
}
