#include "zerograd/kernels/attention/attention.h"

#include "tests/kernels/attention/attention_case.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

TEST_CASE("slopes of ALiBi are the paper's, also for head counts that are no power of two") {
  CHECK(alibi_slopes(1) == std::vector<float>{0x1p-8f});
  CHECK(alibi_slopes(2) == std::vector<float>{0x1p-4f, 0x1p-8f});
  CHECK(alibi_slopes(3) == std::vector<float>{0x1p-4f, 0x1p-8f, 0x1p-2f});
  std::vector<float> powers;
  for (int i = 1; i <= 8; ++i) powers.push_back(std::ldexp(1.0f, -i));
  CHECK(alibi_slopes(8) == powers);
  // Those of 8 heads, then every other one of 16.
  powers.insert(powers.end(), {0.70710678118f, 0.35355339059f, 0.17677669530f, 0.08838834765f});
  CHECK(alibi_slopes(12) == powers);
  for (int64_t heads : {16, 32, 128}) {
    const std::vector<float> slopes = alibi_slopes(heads);
    REQUIRE(slopes.size() == static_cast<size_t>(heads));
    for (int64_t i = 0; i < heads; ++i)
      CHECK(slopes[static_cast<size_t>(i)] ==
            static_cast<float>(
                std::pow(2.0, -8.0 * static_cast<double>(i + 1) / static_cast<double>(heads))));
  }
  const std::vector<float> few = alibi_slopes(32), many = alibi_slopes(40),
                           of_64 = alibi_slopes(64);
  for (size_t i = 0; i < 40; ++i) CHECK(many[i] == (i < 32 ? few[i] : of_64[2 * (i - 32)]));
  CHECK_THROWS_WITH_AS(alibi_slopes(0), "alibi_slopes: heads is 0; expected 1 or more",
                       ConfigError);
}

namespace {

/// The paper's own code, get_slopes() of github.com/ofirpress/attention_with_linear_biases, which
/// BLOOM was trained with; in double.
std::vector<double> published_slopes(int64_t heads) {
  const auto of_power = [](double n) {
    const double start = std::pow(2.0, -std::pow(2.0, -(std::log2(n) - 3.0)));
    std::vector<double> slopes;
    for (int i = 0; i < static_cast<int>(n); ++i) slopes.push_back(start * std::pow(start, i));
    return slopes;
  };
  const double power = std::pow(2.0, std::floor(std::log2(static_cast<double>(heads))));
  std::vector<double> slopes = of_power(power);
  const std::vector<double> more = of_power(2.0 * power);
  for (size_t i = 0; slopes.size() < static_cast<size_t>(heads); i += 2) slopes.push_back(more[i]);
  return slopes;
}

}  // namespace

TEST_CASE("slopes of ALiBi for BLOOM-176B's 112 heads are those of the published code") {
  for (const int64_t heads : {112, 12, 24, 32, 71}) {
    CAPTURE(heads);
    const std::vector<float> slopes = alibi_slopes(heads);
    const std::vector<double> published = published_slopes(heads);
    REQUIRE(slopes.size() == published.size());
    for (size_t i = 0; i < slopes.size(); ++i) {
      CAPTURE(i);
      // One rounding to f32, and powers in double of a base that is rounded.
      CHECK(std::fabs(slopes[i] - published[i]) <= published[i] * (0x1p-24 + 0x1p-44));
    }
  }
  // 64 heads' powers of 2^(-1/8), then every other one of 128 heads' powers of 2^(-1/16).
  const std::vector<float> slopes = alibi_slopes(112);
  CHECK(slopes[0] == 0.91700404320467123f);
  CHECK(slopes[7] == 0x1p-1f);
  CHECK(slopes[63] == 0x1p-8f);
  CHECK(slopes[64] == 0.95760328069857365f);
  CHECK(slopes[65] == 0.87812608018664974f);
  CHECK(slopes[111] == 0.01631677785042834f);
}

TEST_SUITE_BEGIN("every device");

TEST_CASE(
    "attention with ALiBi equals attention with the same bias as a dense tensor, up to rounding") {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : {DType::f32, DType::bf16}) {
      INFO(level_of(device), ", ", name_of(dtype));
      const Problem p = {
          .H = 3, .T = 21, .keys = 34, .offset = 13, .D = 16, .form = Form::cache, .alibi = true};
      const Tensors computed = make(p, dtype, device);
      Tensors stored = make(p, dtype, device);
      std::vector<float> bias;
      for (float slope : alibi_slopes(p.H))
        for (int64_t t = 0; t < p.T; ++t)
          for (int64_t j = 0; j < p.keys; ++j)
            bias.push_back(slope * static_cast<float>(j - (t + p.offset)));
      stored.alibi_slopes = {};
      stored.bias = Tensor::from(bias, {p.H, p.T, p.keys}, device);
      const Naive naive(computed);
      const Tolerance tolerance(computed, naive, device);
      for (const Tensors* t : std::initializer_list<const Tensors*>{&computed, &stored}) {
        kernels::attention_forward(t->forward(), device.compute());
        kernels::attention_backward(t->backward(), device.compute());
      }
      const auto close = [&](const Tensor& a, const Tensor& b, double absolute, double relative) {
        return excess(a, b.to_doubles(), 2.0 * absolute, 2.0 * relative) < 1.0;
      };
      CHECK(close(computed.out, stored.out, tolerance.out, tolerance.rounding));
      CHECK(close(computed.log_sum, stored.log_sum, tolerance.log_sum, 0.0));
      CHECK(close(computed.dq, stored.dq, tolerance.gradient, tolerance.rounding));
      CHECK(close(computed.dk, stored.dk, tolerance.gradient, tolerance.rounding));
      CHECK(close(computed.dv, stored.dv, tolerance.gradient, tolerance.rounding));
    }
}

TEST_SUITE_END();

TEST_CASE("attention with ALiBi slopes of 0 gives the bits of attention without slopes") {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : floating_dtypes)
      for (int64_t T : {1, 45}) {
        INFO(level_of(device), ", ", name_of(dtype));
        const Problem p = {.T = T, .keys = T, .D = 20, .bias_rank = 2, .dropout = 0.1f};
        const Tensors without = make(p, dtype, device);
        Tensors with = make(p, dtype, device);
        with.alibi_slopes = Tensor::zeros({p.H}, accumulator(dtype), device);
        for (const Tensors* t : std::initializer_list<const Tensors*>{&without, &with}) {
          kernels::attention_forward(t->forward(), device.compute());
          kernels::attention_backward(t->backward(), device.compute());
        }
        CHECK(same_bits(with.out, without.out));
        CHECK(same_bits(with.log_sum, without.log_sum));
        CHECK(same_bits(with.dq, without.dq));
      }
}

TEST_CASE("attention with ALiBi needs no more scratch than without, on any device") {
  Problem p = {.B = 2, .H = 3, .T = 133, .keys = 133, .D = 16};
  for (Isa isa : available_levels())
    for (DType dtype : floating_dtypes) {
      const Device device = Device::meta(0, {.threads = 2, .isa = isa});
      const Device::Traits& traits = device.traits();
      const auto scratch = [&](bool alibi) {
        Tensors t = make(p, dtype, device);
        if (alibi) t.alibi_slopes = Tensor::zeros({p.H}, accumulator(dtype), device);
        const auto& forward = kernels::attention_forward;
        const auto& backward = kernels::attention_backward;
        return std::vector<int64_t>{
            forward[Device::Type::cpu].workspace_bytes(t.forward(), traits),
            backward[Device::Type::cpu].workspace_bytes(t.backward(), traits),
            backward[Device::Type::cuda].workspace_bytes(t.backward(), traits),
            forward[Device::Type::hpu].workspace_bytes(t.forward(), traits),
            backward[Device::Type::hpu].workspace_bytes(t.backward(), traits)};
      };
      CHECK(scratch(true) == scratch(false));
    }
  CHECK(!kernels::attention_forward[Device::Type::cuda].workspace_bytes);
}

TEST_CASE("attention refuses slopes that do not fit, by name") {
  const Device device = Device::cpu();
  const Problem p = {.T = 4, .keys = 4, .D = 8};
  const auto run = [&](DType dtype, const Tensor& slopes) {
    Tensors t = make(p, dtype, device);
    t.alibi_slopes = slopes;
    kernels::attention_forward(t.forward(), device.compute());
  };
  const auto run_backward = [&](const Tensor& slopes) {
    Tensors t = make(p, DType::f32, device);
    t.alibi_slopes = slopes;
    kernels::attention_backward(t.backward(), device.compute());
  };
  CHECK_THROWS_WITH_AS(run(DType::f32, Tensor::zeros({3}, DType::f32, device)),
                       "attention_forward: alibi_slopes has shape [3]; expected [2]", ShapeError);
  CHECK_THROWS_WITH_AS(run_backward(Tensor::zeros({2, 1}, DType::f32, device)),
                       "attention_backward: alibi_slopes has shape [2, 1]; expected [2]",
                       ShapeError);
  CHECK_THROWS_WITH_AS(run(DType::bf16, Tensor::zeros({2}, DType::bf16, device)),
                       "attention_forward: alibi_slopes holds bf16; expected f32", DTypeError);
  CHECK_THROWS_WITH_AS(run(DType::f64, Tensor::zeros({2}, DType::f32, device)),
                       "attention_forward: alibi_slopes holds f32; expected f64", DTypeError);
  CHECK_THROWS_AS(run(DType::f32, Tensor::zeros({2}, DType::f32, Device::cpu(1))), DeviceError);
}
