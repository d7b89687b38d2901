#include "kernels/adam.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "tests/op_case.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct Optimizer {
  Tensor parameter, gradient, moment1, moment2, low_precision;
};

Optimizer random_optimizer(int64_t n, DType gradient, std::optional<DType> low,
                           const Device& device, DType state = DType::f32) {
  return {.parameter = random_tensor({n}, state, device, 1),
          .gradient = random_tensor({n}, gradient, device, 2, -3.0, 3.0),
          .moment1 = random_tensor({n}, state, device, 3, -0.1, 0.1),
          .moment2 = random_tensor({n}, state, device, 4, 0.0, 0.1),
          .low_precision = low ? Tensor::zeros({n}, *low, device) : Tensor()};
}

Adam part(const Optimizer& o, int64_t begin, int64_t n, bool decoupled) {
  return {.parameter = o.parameter.flat(begin, n),
          .gradient = o.gradient.flat(begin, n),
          .moment1 = o.moment1.flat(begin, n),
          .moment2 = o.moment2.flat(begin, n),
          .low_precision = o.low_precision ? o.low_precision.flat(begin, n) : Tensor(),
          .gradient_scale = 0.37f,
          .rate = 1e-2f,
          .weight_decay = 0.1f,
          .step = 7,
          .decoupled = decoupled};
}

bool same_state(const Optimizer& a, const Optimizer& b) {
  return same_bits(a.parameter, b.parameter) && same_bits(a.moment1, b.moment1) &&
         same_bits(a.moment2, b.moment2) &&
         (!a.low_precision || same_bits(a.low_precision, b.low_precision));
}

// torch.optim.AdamW, or Adam with weight_decay when not decoupled, in double.
struct Reference {
  std::vector<double> parameter, moment1, moment2;

  void step(const std::vector<double>& gradient, const Adam& a) {
    const double correction1 = 1.0 - std::pow(double{a.beta1}, static_cast<double>(a.step));
    const double correction2 = 1.0 - std::pow(double{a.beta2}, static_cast<double>(a.step));
    for (size_t i = 0; i < parameter.size(); ++i) {
      double g = gradient[i] * a.gradient_scale;
      if (a.decoupled)
        parameter[i] *= 1.0 - double{a.rate} * a.weight_decay;
      else
        g += a.weight_decay * parameter[i];
      moment1[i] += (g - moment1[i]) * (1.0 - a.beta1);
      moment2[i] = a.beta2 * moment2[i] + (1.0 - a.beta2) * g * g;
      const double denominator = std::sqrt(moment2[i]) / std::sqrt(correction2) + a.epsilon;
      parameter[i] -= a.rate / correction1 * moment1[i] / denominator;
    }
  }
};

}  // namespace

TEST_CASE("adam follows torch's formula in double for 20 steps" *
          doctest::test_suite("every device")) {
  constexpr int64_t n = 1023;
  for (const Device& device : devices_at_every_level())
    for (DType dtype : {DType::f32, DType::bf16})
      for (bool decoupled : {true, false}) {
        CAPTURE(level_of(device));
        CAPTURE(std::string(name_of(dtype)));
        CAPTURE(decoupled);
        Adam a{.parameter = random_tensor({n}, DType::f32, device, 1),
               .moment1 = Tensor::zeros({n}, DType::f32, device),
               .moment2 = Tensor::zeros({n}, DType::f32, device),
               .gradient_scale = 0.25f,
               .rate = 1e-3f,
               .weight_decay = 0.1f,
               .decoupled = decoupled};
        Reference reference{a.parameter.to_doubles(), std::vector<double>(n),
                            std::vector<double>(n)};
        for (a.step = 1; a.step <= 20; ++a.step) {
          a.gradient = random_tensor({n}, dtype, device, static_cast<uint64_t>(100 + a.step));
          kernels::adam(a, device.compute());
          reference.step(a.gradient.to_doubles(), a);
        }
        // u = 2^-24. A step rounds keep, keep * p and the sum: 3u|p|, |p| < 1.03, 20 times: 62u.
        // Its move is rate (1e-3) times a ratio below sqrt(20), known to about 15u (v and its root)
        // plus 13u sqrt(20) (m against the largest gradient): below 0.2u a step, 4u in all.
        CHECK(excess(a.parameter, reference.parameter, 66 * 0x1p-24) < 1.0);
        // Three roundings of every new term, one of the running sum with memory 1 / (1 - beta1),
        // one of new1: (4 + 10) u max|g|, and |g| < 0.25 + 0.1 * 1.03.
        CHECK(excess(a.moment1, reference.moment1, 14 * 0.36 * 0x1p-24) < 1.0);
        // All terms are positive: 5u per term and u for each of 20 sums; with l2 the gradient
        // itself is a difference, known to 3u * 0.36, which doubles in its square.
        CHECK(excess(a.moment2, reference.moment2,
                     decoupled ? 0.0 : 20 * 1e-3 * 2 * 3 * 0.36 * 0.36 * 0x1p-24,
                     25 * 0x1p-24) < 1.0);
      }
}

TEST_CASE("adam gives the same bits at every level, for any split and thread count" *
          doctest::test_suite("every device")) {
  const Device portable = Device::cpu(0, {.threads = 1, .isa = Isa::portable});
  for (DType gradient : {DType::f32, DType::bf16})
    for (std::optional<DType> low :
         {std::optional<DType>(), std::optional(DType::bf16), std::optional(DType::f16)})
      for (bool decoupled : {true, false})
        for (int64_t n : {1, 15, 31, 1023, 16417}) {
          const Optimizer expected = random_optimizer(n, gradient, low, portable);
          kernels::adam(part(expected, 0, n, decoupled), portable.compute());
          for (const Device& device : devices_at_every_level()) {
            CAPTURE(level_of(device));
            CAPTURE(n);
            const Optimizer whole = random_optimizer(n, gradient, low, device);
            kernels::adam(part(whole, 0, n, decoupled), device.compute());
            CHECK(same_state(whole, expected));
            const Optimizer halves = random_optimizer(n, gradient, low, device);
            const int64_t cut = n * 3 / 7;
            kernels::adam(part(halves, cut, n - cut, decoupled), device.compute());
            kernels::adam(part(halves, 0, cut, decoupled), device.compute());
            CHECK(same_state(halves, expected));
          }
        }
}

TEST_CASE("adam on bf16 state is adam on f32 state, each of the three results rounded once" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level())
    for (DType gradient : {DType::f32, DType::bf16})
      for (bool decoupled : {true, false})
        for (int64_t n : {1, 15, 31, 1023, 16417}) {
          CAPTURE(level_of(device));
          CAPTURE(n);
          const Optimizer narrow = random_optimizer(n, gradient, {}, device, DType::bf16);
          const auto values = [](const Tensor& x) {  // exact in f32
            const std::vector<double> wide = x.to_doubles();
            return std::vector<float>(wide.begin(), wide.end());
          };
          const auto widened = [&](const Tensor& x) {
            return Tensor::from(values(x), {n}, device);
          };
          const Optimizer wide{.parameter = widened(narrow.parameter),
                               .gradient = narrow.gradient,
                               .moment1 = widened(narrow.moment1),
                               .moment2 = widened(narrow.moment2)};
          kernels::adam(part(wide, 0, n, decoupled), device.compute());
          const int64_t cut = n * 3 / 7;
          kernels::adam(part(narrow, cut, n - cut, decoupled), device.compute());
          kernels::adam(part(narrow, 0, cut, decoupled), device.compute());
          const auto is_rounded = [&](const Tensor& x, const Tensor& exact) {
            std::vector<float> expected = values(exact);
            for (float& value : expected) value = static_cast<float>(bf16(value));
            return values(x) == expected;
          };
          CHECK(is_rounded(narrow.parameter, wide.parameter));
          CHECK(is_rounded(narrow.moment1, wide.moment1));
          CHECK(is_rounded(narrow.moment2, wide.moment2));
        }
}

TEST_CASE("adam rounds the low-precision copy to nearest even, as bf16(float) and f16(float) do" *
          doctest::test_suite("every device")) {
  std::vector<float> values;
  // Every exponent with mantissas at and beside ties, both signs; then infinity and NaN.
  for (uint32_t exponent = 0; exponent < 255; ++exponent)
    for (uint32_t mantissa : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x3000u, 0x7fffu, 0x8000u, 0x8001u,
                              0x18000u, 0x7fefffu, 0x7ff000u, 0x7fffffu})
      for (uint32_t sign : {0u, 0x80000000u})
        values.push_back(std::bit_cast<float>(sign | (exponent << 23) | mantissa));
  const float infinity = std::numeric_limits<float>::infinity();
  values.insert(values.end(), {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()});
  const int64_t n = static_cast<int64_t>(values.size());
  for (const Device& device : devices_at_every_level())
    for (DType low : {DType::bf16, DType::f16}) {
      CAPTURE(level_of(device));
      // A rate of 0 moves nothing: p = fma(-0, m / d, 1 * p).
      const Adam a{.parameter = Tensor::from(values, {n}, device),
                   .gradient = Tensor::zeros({n}, DType::f32, device),
                   .moment1 = Tensor::zeros({n}, DType::f32, device),
                   .moment2 = Tensor::zeros({n}, DType::f32, device),
                   .low_precision = Tensor::empty({n}, low, device),
                   .rate = 0.0f};
      kernels::adam(a, device.compute());
      const std::vector<float> moved = a.parameter.to_host<float>();
      std::vector<uint8_t> expected;
      for (float p : moved) {
        const uint16_t bits = low == DType::bf16 ? bf16(p).bits : f16(p).bits;
        expected.push_back(static_cast<uint8_t>(bits));
        expected.push_back(static_cast<uint8_t>(bits >> 8));
      }
      CHECK(bytes_of(a.low_precision) == expected);
      CHECK(std::equal(moved.begin(), moved.end() - 1, values.begin()));  // all but the NaN
    }
}

TEST_CASE("adam refuses what does not fit, before any work") {
  const Device device = Device::cpu();
  Optimizer o = random_optimizer(32, DType::f32, DType::bf16, device);
  const std::vector<float> before = o.parameter.to_host<float>();
  auto refused = [&](auto change) {
    Adam a = part(o, 0, 32, true);
    change(a);
    kernels::adam(a, device.compute());
  };
  CHECK_THROWS_WITH_AS(refused([](Adam& a) { a.gradient = a.gradient.flat(0, 31); }),
                       "adam: gradient has shape [31]; expected [32]", ShapeError);
  CHECK_THROWS_WITH_AS(refused([](Adam& a) { a.moment2 = Tensor(); }),
                       "adam: moment2 is absent; expected a tensor", ShapeError);
  CHECK_THROWS_WITH_AS(refused([](Adam& a) { a.parameter = a.low_precision; }),
                       "adam: moment1 holds f32; expected bf16", DTypeError);
  CHECK_THROWS_WITH_AS(
      refused([](Adam& a) { a.parameter = a.moment1 = a.moment2 = a.low_precision; }),
      "adam: low_precision is given beside a bf16 parameter; expected it absent", DTypeError);
  CHECK_THROWS_WITH_AS(refused([](Adam& a) { a.low_precision = a.gradient; }),
                       "adam: low_precision holds f32; expected bf16 or f16", DTypeError);
  CHECK_THROWS_WITH_AS(refused([](Adam& a) { a.step = 0; }),
                       "adam: step is 0.000000; expected a count from 1", ConfigError);
  CHECK_THROWS_AS(refused([](Adam& a) { a.beta2 = 1.0f; }), ConfigError);
  CHECK_THROWS_AS(refused([](Adam& a) { a.beta1 = NAN; }), ConfigError);
  CHECK_THROWS_AS(refused([](Adam& a) { a.epsilon = -1e-8f; }), ConfigError);
  CHECK_THROWS_AS(refused([](Adam& a) { a.rate = INFINITY; }), ConfigError);
  CHECK_THROWS_AS(
      refused([](Adam& a) { a.gradient = Tensor::zeros({32}, DType::f32, Device::cpu(1)); }),
      DeviceError);
  CHECK(o.parameter.to_host<float>() == before);
}
