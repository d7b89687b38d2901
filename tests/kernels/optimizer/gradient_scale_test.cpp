#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "zerograd/kernels/optimizer/optimizer.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr int64_t limb_count = SumOfSquares::limb_count;

/// The limbs of the sum of squares of x, which has a multiple of 16 elements.
std::vector<int64_t> limbs_of(const std::vector<float>& x) {
  const Device device = Device::cpu();
  const auto n = static_cast<int64_t>(x.size());
  const Tensor limbs = Tensor::zeros({limb_count}, DType::i64, device);
  kernels::sum_of_squares({.parts = {{.x = Tensor::from(x, {n}, device),
                                      .limbs = limbs,
                                      .non_finite = Tensor::zeros({1}, DType::i64, device)}}},
                          device.compute());
  return limbs.to_host<int64_t>();
}

/// The limbs of a sum that is the double x, as two parts of its 53 bits.
std::vector<int64_t> limbs_of_sum(double x) {
  constexpr int bits = SumOfSquares::limb_bits;
  int exponent = 0;
  const auto m = static_cast<int64_t>(std::ldexp(std::frexp(x, &exponent), 53));
  const int bit = exponent - 53 - SumOfSquares::lowest_exponent, limb = bit / bits;
  std::vector<int64_t> limbs(limb_count);
  limbs[static_cast<size_t>(limb)] = (m % (1 << bits)) << bit % bits;
  limbs[static_cast<size_t>(limb) + 1] = (m / (1 << bits)) << bit % bits;
  return limbs;
}

float scale_of(const std::vector<int64_t>& limbs, const std::vector<int64_t>& counts,
               const Clipping& clipping, const Device& device) {
  const Tensor scale = Tensor::full({1}, 7.0, DType::f32, device);
  kernels::gradient_scale(
      {.limbs = Tensor::from(limbs, {limb_count}, device),
       .non_finite = Tensor::from(counts, {static_cast<int64_t>(counts.size())}, device),
       .scale = scale,
       .clipping = clipping},
      device.compute());
  return scale.to_host<float>()[0];
}

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

/// The state of one parameter, and its update by adam.
struct ScaledUpdate {
  explicit ScaledUpdate(const Device& device, int64_t n)
      : parameter(random_tensor({n}, DType::f32, device, 1)),
        gradient(random_tensor({n}, DType::f32, device, 2)),
        moment1(random_tensor({n}, DType::f32, device, 3)),
        moment2(random_tensor({n}, DType::f32, device, 4, 0.0, 1.0)),
        low(Tensor::zeros({n}, DType::bf16, device)) {}

  void run(float gradient_scale, const Tensor& scale) const {
    kernels::optimizer_update({.tensors = {{.parameter = parameter,
                                            .gradient = gradient,
                                            .moment1 = moment1,
                                            .moment2 = moment2,
                                            .low_precision = low}},
                               .gradient_scale = gradient_scale,
                               .scale = scale},
                              parameter.device().compute());
  }
  SameBits equals(const ScaledUpdate& other) const {
    for (const auto state : {&ScaledUpdate::parameter, &ScaledUpdate::moment1,
                             &ScaledUpdate::moment2, &ScaledUpdate::low})
      if (const SameBits same = same_bits(this->*state, other.*state); !same) return same;
    return {};
  }

  Tensor parameter, gradient, moment1, moment2, low;
};

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("gradient_scale gives the bits of the factor that the host computes of the norm") {
  // The last ones have factors that are subnormal, or so small that they become 0.
  const Clipping clippings[] = {{},
                                {.clip_norm = -1.0f},
                                {.micro_batches = 3, .clip_norm = 1.0f},
                                {.micro_batches = 7, .clip_norm = 0.37f, .loss_scale = 3.0},
                                {.micro_batches = 8, .clip_norm = 0.1f, .loss_scale = 65536.0},
                                {.micro_batches = 1, .clip_norm = 1e30f},
                                {.micro_batches = 5, .clip_norm = 3e-40f},
                                {.micro_batches = 3, .clip_norm = 1e-12f}};
  constexpr size_t seeds = 24;
  std::vector<std::vector<float>> gradients(seeds, std::vector<float>(16));
  const float sizes[] = {1.0f, 1e-25f, 1e30f, 1e-3f};
  for (size_t seed = 1; seed < seeds; ++seed) {
    gradients[seed] =
        random_tensor({160}, DType::f32, Device::cpu(), seed, -1.0, 1.0).to_host<float>();
    for (float& x : gradients[seed]) x *= sizes[seed % 4];
  }
  for (const Device& device : devices_at_every_level())
    for (const Clipping& clipping : clippings)
      for (const std::vector<float>& x : gradients) {
        INFO(level_of(device), ", clip norm ", clipping.clip_norm, ", ", x[1]);
        const std::vector<int64_t> limbs = limbs_of(x);
        double sum = 0.0;
        for (const float value : x) sum += double{value} * value;
        CHECK(value_of_limbs(limbs.data()) == doctest::Approx(sum));
        const double norm = std::sqrt(value_of_limbs(limbs.data())) /
                            (static_cast<double>(clipping.micro_batches) * clipping.loss_scale);
        const float expected = clipping.factor(norm);
        CHECK(bits_of(scale_of(limbs, {0, 0, 0}, clipping, device)) == bits_of(expected));
      }
}

TEST_CASE("gradient_scale rounds root and quotients as f64 does where a bit below decides") {
  // Found by a search. `what` lies above the middle of two doubles by less than the bits that
  // integers compute of it; one that rounds to the lower double gives another f32.
  struct Case {
    const char* what;
    double sum;
    float clip_norm;
    int64_t micro_batches;
    float expected;
    bool is_above = false;  ///< the sum is above this double by half a step and a bit
  };
  const Case cases[] = {{"the root", 0x1.71f6abd425a2ep+0, 1.0f, 1, 0x1.a9e704p-1f},
                        {"norm / divisor", 0x1.0df50e1f939d3p+5, 0.5f, 3, 0x1.608e26p-4f},
                        {"clip / norm", 0x1.71f6abd425a2cp+0, 1.0f, 1, 0x1.a9e706p-1f},
                        {"ratio / divisor", 0x1.1494f27b809d6p+9, 3.0f, 7, 0x1.053b12p-3f},
                        {"the sum", 0x1.804a191fff2cap+0, 1.0f, 1, 0x1.a1e370p-1f, true}};
  for (const Device& device : devices_at_every_level())
    for (const Case& c : cases) {
      INFO(level_of(device), ", ", c.what);
      std::vector<int64_t> limbs = limbs_of_sum(c.sum);
      if (c.is_above) {  // the last bit of a sum of 1 to 2 is that of limb 18
        limbs[17] = 1 << (SumOfSquares::limb_bits - 1);
        limbs[16] = 1;
      }
      CHECK(value_of_limbs(limbs.data()) == (c.is_above ? std::nextafter(c.sum, 2.0) : c.sum));
      const Clipping clipping{.micro_batches = c.micro_batches, .clip_norm = c.clip_norm};
      CHECK(bits_of(scale_of(limbs, {0}, clipping, device)) == bits_of(c.expected));
    }
}

TEST_CASE("gradient_scale is NaN if any parameter's gradient is not finite") {
  for (const Device& device : devices_at_every_level())
    for (const int64_t count : {1, 2, 255, 256, 257, 700})
      for (const int64_t bad : {int64_t{0}, count / 2, count - 1}) {
        INFO("count ", count, ", bad ", bad);
        std::vector<int64_t> counts(static_cast<size_t>(count));
        CHECK(scale_of(std::vector<int64_t>(limb_count), counts, {}, device) == 1.0f);
        counts[static_cast<size_t>(bad)] = 1;
        CHECK(std::isnan(scale_of(std::vector<int64_t>(limb_count), counts, {}, device)));
      }
}

TEST_CASE("an update with a factor in memory has the bits of the same factor as a number") {
  for (const Device& device : devices_at_every_level())
    for (const int64_t n : {3, 64, 1001}) {
      CAPTURE(n);
      const ScaledUpdate by_number(device, n), by_tensor(device, n);
      by_number.run(0.37f, {});
      by_tensor.run(1.0f, Tensor::full({1}, 0.37f, DType::f32, device));
      CHECK(by_tensor.equals(by_number));
    }
}

TEST_CASE("an update with a factor of NaN in memory changes nothing") {
  for (const Device& device : devices_at_every_level())
    for (const int64_t n : {3, 64, 1001}) {
      CAPTURE(n);
      const ScaledUpdate skipped(device, n), before(device, n);
      skipped.run(1.0f,
                  Tensor::full({1}, std::numeric_limits<double>::quiet_NaN(), DType::f32, device));
      CHECK(skipped.equals(before));
    }
}

TEST_SUITE_END();

TEST_CASE("gradient_scale and an update refuse a factor of another shape or dtype") {
  const Device device = Device::cpu();
  const Tensor limbs = Tensor::zeros({limb_count}, DType::i64, device);
  const Tensor one = Tensor::zeros({1}, DType::f32, device);
  const Tensor two = Tensor::zeros({2}, DType::f32, device);
  const Tensor wide = Tensor::zeros({1}, DType::f64, device);
  const auto refused = [&](const Tensor& sums, const Tensor& counts, const Tensor& scale) {
    return message_of<Error>([&] {
      kernels::gradient_scale({.limbs = sums, .non_finite = counts, .scale = scale},
                              device.compute());
    });
  };
  const Tensor counts = Tensor::zeros({3}, DType::i64, device);
  CHECK(refused(counts, counts, one) == "gradient_scale: limbs has shape [3]; expected [40]");
  CHECK(refused(limbs, one, one) == "gradient_scale: non_finite holds f32; expected i64");
  CHECK(refused(limbs, counts, two) == "gradient_scale: scale has shape [2]; expected [1]");
  CHECK(refused(limbs, counts, wide) == "gradient_scale: scale holds f64; expected f32");
  const ScaledUpdate update(device, 4);
  CHECK(message_of<Error>([&] { update.run(1.0f, two); }) ==
        "adam: scale has shape [2]; expected [1]");
}
