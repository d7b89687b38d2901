#include "zerograd/kernels/optimizer/optimizer.h"

#include <algorithm>
#include <limits>

#include "tests/support/op_case.h"

using namespace zg;
using namespace zg::testing;

namespace {

OptimizerTensor random_tensors(int64_t n, DType gradient, std::optional<DType> low,
                               const Device& device, DType state = DType::f32) {
  return {.parameter = random_tensor({n}, state, device, 1),
          .gradient = random_tensor({n}, gradient, device, 2, -3.0, 3.0),
          .moment1 = random_tensor({n}, state, device, 3, -0.1, 0.1),
          .moment2 = random_tensor({n}, state, device, 4, 0.0, 0.1),
          .low_precision = low ? Tensor::zeros({n}, *low, device) : Tensor(),
          .weight_decay = 0.1f};
}

OptimizerTensor adam_part(const OptimizerTensor& t, int64_t begin, int64_t n) {
  return {.parameter = t.parameter.flat(begin, n),
          .gradient = t.gradient.flat(begin, n),
          .moment1 = t.moment1.flat(begin, n),
          .moment2 = t.moment2.flat(begin, n),
          .low_precision = t.low_precision ? t.low_precision.flat(begin, n) : Tensor(),
          .weight_decay = t.weight_decay};
}

OptimizerUpdate step_of(std::vector<OptimizerTensor> tensors, bool decoupled) {
  return {.tensors = std::move(tensors),
          .gradient_scale = 0.37f,
          .rate = 1e-2f,
          .step = 7,
          .decoupled = decoupled};
}

OptimizerUpdate adam_part(const OptimizerTensor& t, int64_t begin, int64_t n, bool decoupled) {
  return step_of({adam_part(t, begin, n)}, decoupled);
}

SameBits same_state(const OptimizerTensor& a, const OptimizerTensor& b) {
  for (const auto state : {&OptimizerTensor::parameter, &OptimizerTensor::moment1,
                           &OptimizerTensor::moment2, &OptimizerTensor::low_precision})
    if (const SameBits same = same_bits(a.*state, b.*state); !same) return same;
  return {};
}

// torch.optim.AdamW, or Adam with weight_decay when not decoupled, in double.
struct ReferenceAdam {
  std::vector<double> parameter, moment1, moment2;

  void step(const std::vector<double>& gradient, const OptimizerUpdate& a) {
    const double weight_decay = a.tensors[0].weight_decay;
    const double rate = double{a.rate} * a.tensors[0].rate_factor;
    const double correction1 = 1.0 - std::pow(double{a.beta1}, static_cast<double>(a.step));
    const double correction2 = 1.0 - std::pow(double{a.beta2}, static_cast<double>(a.step));
    for (size_t i = 0; i < parameter.size(); ++i) {
      double g = gradient[i] * a.gradient_scale;
      if (a.decoupled)
        parameter[i] *= 1.0 - rate * weight_decay;
      else
        g += weight_decay * parameter[i];
      moment1[i] += (g - moment1[i]) * (1.0 - a.beta1);
      moment2[i] = a.beta2 * moment2[i] + (1.0 - a.beta2) * g * g;
      const double denominator = std::sqrt(moment2[i]) / std::sqrt(correction2) + a.epsilon;
      parameter[i] -= rate / correction1 * moment1[i] / denominator;
    }
  }
};

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("adam follows torch's formula in double for 20 steps") {
  constexpr int64_t n = 1023;
  for (const Device& device : devices_at_every_level())
    for (DType dtype : {DType::f32, DType::bf16})
      for (bool decoupled : {true, false}) {
        INFO(level_of(device), ", ", name_of(dtype), ", decoupled ", decoupled);
        OptimizerUpdate a{.tensors = {{.parameter = random_tensor({n}, DType::f32, device, 1),
                                       .moment1 = Tensor::zeros({n}, DType::f32, device),
                                       .moment2 = Tensor::zeros({n}, DType::f32, device),
                                       .weight_decay = 0.1f,
                                       .rate_factor = 0.75f}},
                          .gradient_scale = 0.25f,
                          .rate = 1e-3f,
                          .decoupled = decoupled};
        OptimizerTensor& t = a.tensors[0];
        ReferenceAdam reference{t.parameter.to_doubles(), std::vector<double>(n),
                                std::vector<double>(n)};
        for (a.step = 1; a.step <= 20; ++a.step) {
          t.gradient = random_tensor({n}, dtype, device, static_cast<uint64_t>(100 + a.step));
          kernels::optimizer_update(a, device.compute());
          reference.step(t.gradient.to_doubles(), a);
        }
        // u = 2^-24. A step rounds keep, keep * p and the sum: 3u|p|, |p| < 1.03, 20 times: 62u.
        // Its move is rate (1e-3) times a ratio below sqrt(20), known to about 15u (v and its root)
        // plus 13u sqrt(20) (m against the largest gradient): below 0.2u a step, 4u in all.
        CHECK(excess(t.parameter, reference.parameter, 66 * 0x1p-24) < 1.0);
        // Three roundings of every new term, one of the running sum with memory 1 / (1 - beta1),
        // one of new1: (4 + 10) u max|g|, and |g| < 0.25 + 0.1 * 1.03.
        CHECK(excess(t.moment1, reference.moment1, 14 * 0.36 * 0x1p-24) < 1.0);
        // All terms are positive: 5u per term and u for each of 20 sums; with l2 the gradient
        // itself is a difference, known to 3u * 0.36, which doubles in its square.
        CHECK(excess(t.moment2, reference.moment2,
                     decoupled ? 0.0 : 20 * 1e-3 * 2 * 3 * 0.36 * 0.36 * 0x1p-24,
                     25 * 0x1p-24) < 1.0);
      }
}

TEST_CASE("adam gives the same bits at every level, for any split and thread count") {
  const Device portable = Device::cpu(0, {.threads = 1, .isa = Isa::portable});
  for (DType gradient : {DType::f32, DType::bf16})
    for (std::optional<DType> low :
         {std::optional<DType>(), std::optional(DType::bf16), std::optional(DType::f16)})
      for (bool decoupled : {true, false})
        // 16385: one element more than 16 blocks of a launch on a GPU.
        for (int64_t n : {1, 15, 31, 1023, 16385}) {
          const OptimizerTensor expected = random_tensors(n, gradient, low, portable);
          kernels::optimizer_update(adam_part(expected, 0, n, decoupled), portable.compute());
          for (const Device& device : devices_at_every_level()) {
            INFO(level_of(device), ", n ", n);
            if (low && !has_dtype(device, *low)) continue;
            const OptimizerTensor whole = random_tensors(n, gradient, low, device);
            kernels::optimizer_update(adam_part(whole, 0, n, decoupled), device.compute());
            CHECK(same_state(whole, expected));
            const OptimizerTensor halves = random_tensors(n, gradient, low, device);
            const int64_t cut = n * 3 / 7;
            kernels::optimizer_update(adam_part(halves, cut, n - cut, decoupled), device.compute());
            kernels::optimizer_update(adam_part(halves, 0, cut, decoupled), device.compute());
            CHECK(same_state(halves, expected));
          }
        }
}

TEST_CASE("adam on bf16 states gives the results of adam on f32 states, each rounded once") {
  for (const Device& device : devices_at_every_level())
    for (DType gradient : {DType::f32, DType::bf16})
      for (bool decoupled : {true, false})
        for (int64_t n : {1, 15, 31, 1023, 16417}) {
          INFO(level_of(device), ", n ", n);
          const OptimizerTensor narrow = random_tensors(n, gradient, {}, device, DType::bf16);
          const auto values = [](const Tensor& x) {  // exact in f32
            const std::vector<double> wide = x.to_doubles();
            return std::vector<float>(wide.begin(), wide.end());
          };
          const auto widened = [&](const Tensor& x) {
            return Tensor::from(values(x), {n}, device);
          };
          const OptimizerTensor wide{.parameter = widened(narrow.parameter),
                                     .gradient = narrow.gradient,
                                     .moment1 = widened(narrow.moment1),
                                     .moment2 = widened(narrow.moment2),
                                     .weight_decay = narrow.weight_decay};
          kernels::optimizer_update(adam_part(wide, 0, n, decoupled), device.compute());
          const int64_t cut = n * 3 / 7;
          kernels::optimizer_update(adam_part(narrow, cut, n - cut, decoupled), device.compute());
          kernels::optimizer_update(adam_part(narrow, 0, cut, decoupled), device.compute());
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

TEST_CASE("adam rounds the low-precision copy to nearest even, as bf16(float) and f16(float) do") {
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
    for (DType low : on_device({DType::bf16, DType::f16}, device)) {
      CAPTURE(level_of(device));
      // A rate of 0 moves nothing: p = fma(-0, m / d, 1 * p).
      const OptimizerTensor t{.parameter = Tensor::from(values, {n}, device),
                              .gradient = Tensor::zeros({n}, DType::f32, device),
                              .moment1 = Tensor::zeros({n}, DType::f32, device),
                              .moment2 = Tensor::zeros({n}, DType::f32, device),
                              .low_precision = Tensor::empty({n}, low, device)};
      kernels::optimizer_update({.tensors = {t}, .rate = 0.0f}, device.compute());
      const std::vector<float> moved = t.parameter.to_host<float>();
      std::vector<uint8_t> expected;
      for (float p : moved) {
        const uint16_t bits = low == DType::bf16 ? bf16(p).bits : f16(p).bits;
        expected.push_back(static_cast<uint8_t>(bits));
        expected.push_back(static_cast<uint8_t>(bits >> 8));
      }
      // All but the NaN: devices write different NaNs.
      std::vector<uint8_t> rounded = bytes_of(t.low_precision);
      CHECK(std::isnan(t.low_precision.to_doubles().back()));
      rounded.resize(rounded.size() - 2);
      expected.resize(expected.size() - 2);
      CHECK(rounded == expected);
      CHECK(std::equal(moved.begin(), moved.end() - 1, values.begin()));
    }
}

TEST_CASE("adam on many tensors at once gives the bits of adam on one tensor after the other") {
  // Empty ones first, last and beside each other, odd ones, one of several chunks; and more than a
  // launch on a GPU takes.
  std::vector<int64_t> lengths = {0, 1, 3, 64, 0, 0, 1023, 1024, 1025, 33000};
  for (int64_t i = 0; i < 120; ++i) lengths.push_back(i * 7 % 131);
  lengths.push_back(0);
  int64_t total = 0;
  for (const int64_t n : lengths) total += n;
  // Each begins where the one before ends: some on a boundary of vectors, most on none.
  const auto cut = [&](const OptimizerTensor& all) {
    std::vector<OptimizerTensor> tensors;
    int64_t begin = 0;
    for (const int64_t n : lengths) {
      tensors.push_back(adam_part(all, begin, n));
      tensors.back().weight_decay = begin % 2 == 0 ? 0.1f : 0.0f;
      tensors.back().rate_factor = begin % 3 == 0 ? 0.5f : 1.0f;
      begin += n;
    }
    return tensors;
  };
  for (const Device& device : devices_at_every_level())
    for (DType state : {DType::f32, DType::bf16})
      for (bool decoupled : {true, false}) {
        INFO(level_of(device), ", decoupled ", decoupled);
        const std::optional<DType> low =
            state == DType::f32 ? std::optional(DType::bf16) : std::nullopt;
        const OptimizerTensor together = random_tensors(total, DType::f32, low, device, state);
        kernels::optimizer_update(step_of(cut(together), decoupled), device.compute());
        const OptimizerTensor alone = random_tensors(total, DType::f32, low, device, state);
        for (const OptimizerTensor& tensor : cut(alone))
          kernels::optimizer_update(step_of({tensor}, decoupled), device.compute());
        CHECK(same_state(together, alone));
        CHECK(!same_bits(together.parameter,
                         random_tensors(total, DType::f32, low, device, state).parameter));
        kernels::optimizer_update(step_of({}, decoupled), device.compute());  // nothing to do
      }
}

TEST_SUITE_END();

TEST_CASE("adam refuses wrong shapes, dtypes, devices and numbers before it changes a parameter") {
  const Device device = Device::cpu();
  const OptimizerTensor o = random_tensors(32, DType::f32, DType::bf16, device);
  const std::vector<float> before = o.parameter.to_host<float>();
  auto refused = [&](auto change) {
    OptimizerUpdate a = adam_part(o, 0, 32, true);
    change(a.tensors[0]);
    kernels::optimizer_update(a, device.compute());
  };
  auto refused_number = [&](auto change) {
    OptimizerUpdate a = adam_part(o, 0, 32, true);
    change(a);
    kernels::optimizer_update(a, device.compute());
  };
  CHECK_THROWS_WITH_AS(refused([](OptimizerTensor& t) { t.gradient = t.gradient.flat(0, 31); }),
                       "adam: gradient has shape [31]; expected [32]", ShapeError);
  CHECK_THROWS_WITH_AS(refused([](OptimizerTensor& t) { t.moment2 = Tensor(); }),
                       "adam: moment2 is absent; expected a tensor", ShapeError);
  CHECK_THROWS_WITH_AS(refused([](OptimizerTensor& t) { t.parameter = t.low_precision; }),
                       "adam: moment1 holds f32; expected bf16", DTypeError);
  CHECK_THROWS_WITH_AS(
      refused([](OptimizerTensor& t) { t.parameter = t.moment1 = t.moment2 = t.low_precision; }),
      "adam: low_precision is given beside a bf16 parameter; expected it absent", DTypeError);
  CHECK_THROWS_WITH_AS(refused([](OptimizerTensor& t) { t.low_precision = t.gradient; }),
                       "adam: low_precision holds f32; expected bf16 or f16", DTypeError);
  CHECK_THROWS_WITH_AS(refused_number([](OptimizerUpdate& a) { a.step = 0; }),
                       "adam: step is 0.000000; expected a count from 1", ConfigError);
  CHECK_THROWS_AS(refused_number([](OptimizerUpdate& a) { a.beta2 = 1.0f; }), ConfigError);
  CHECK_THROWS_AS(refused_number([](OptimizerUpdate& a) { a.beta1 = NAN; }), ConfigError);
  CHECK_THROWS_AS(refused_number([](OptimizerUpdate& a) { a.epsilon = -1e-8f; }), ConfigError);
  CHECK_THROWS_AS(refused_number([](OptimizerUpdate& a) { a.rate = INFINITY; }), ConfigError);
  CHECK_THROWS_AS(refused([](OptimizerTensor& t) {
                    t.gradient = Tensor::zeros({32}, DType::f32, Device::cpu(1));
                  }),
                  DeviceError);
  CHECK_THROWS_AS(refused([](OptimizerTensor& t) { t.weight_decay = NAN; }), ConfigError);
  const auto beside = [&](auto change) {
    OptimizerUpdate a = step_of({adam_part(o, 0, 16), adam_part(o, 16, 16)}, true);
    change(a.tensors[1]);
    kernels::optimizer_update(a, device.compute());
  };
  CHECK_THROWS_WITH_AS(beside([](OptimizerTensor& t) { t.gradient = t.gradient.flat(0, 1); }),
                       "adam, tensor 1: gradient has shape [1]; expected [16]", ShapeError);
  CHECK_THROWS_WITH_AS(beside([](OptimizerTensor& t) { t.gradient = t.low_precision; }),
                       "adam, tensor 1: gradient holds bf16; expected f32", DTypeError);
  CHECK_THROWS_WITH_AS(beside([](OptimizerTensor& t) { t.low_precision = Tensor(); }),
                       "adam, tensor 1: low_precision is absent; expected a tensor", ShapeError);
  CHECK_THROWS_WITH_AS(
      beside([&](OptimizerTensor& t) { t = random_tensors(16, DType::f32, DType::f16, device); }),
      "adam, tensor 1: low_precision holds f16; expected bf16", DTypeError);
  CHECK_THROWS_WITH_AS(beside([&](OptimizerTensor& t) {
                         t = random_tensors(16, DType::f32, {}, device, DType::bf16);
                       }),
                       "adam, tensor 1: parameter holds bf16; expected f32", DTypeError);
  CHECK_THROWS_AS(beside([](OptimizerTensor& t) {
                    t = random_tensors(16, DType::f32, DType::bf16, Device::cpu(1));
                  }),
                  DeviceError);
  OptimizerUpdate bare = step_of({adam_part(o, 0, 16), adam_part(o, 16, 16)}, true);
  bare.tensors[0].low_precision = Tensor();
  CHECK_THROWS_WITH_AS(
      kernels::optimizer_update(bare, device.compute()),
      "adam, tensor 1: low_precision is given, tensor 0 has none; expected it in all or in none",
      DTypeError);
  CHECK(o.parameter.to_host<float>() == before);
}
