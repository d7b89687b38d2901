#include "zerograd/kernels/attention/attention.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/fakes/cuda/block.h"
#include "tests/support/op_case.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct AttentionResults {
  Tensor out, log_sum, dqkv;
};

struct AttentionSizes {
  int64_t T = 150, D = 64;
  bool causal = true, alibi = false;
};

/// The same numbers in another dtype.
Tensor cast_to(DType dtype, const Tensor& x) {
  const std::vector<double> all = x.to_doubles();
  const std::vector<float> values(all.begin(), all.end());
  return dtype == x.dtype() ? x : Tensor::from(values, x.shape(), x.device());
}

/// Forward and backward on numbers of `numbers`, computed in `dtype`, which is the same or f32.
AttentionResults run_attention(DType numbers, DType dtype, const AttentionSizes& sizes,
                               const Device& device) {
  const int64_t B = 1, H = 2, T = sizes.T, D = sizes.D, C = H * D;
  const auto part = [&](int64_t i) {
    return HeadLayout{.offset = i * C, .batch = T * 3 * C, .head = D, .token = 3 * C};
  };
  const AttentionShape shape = {.B = B,
                                .H = H,
                                .T = T,
                                .keys = T,
                                .D = D,
                                .causal = sizes.causal,
                                .q = part(0),
                                .k = part(1),
                                .v = part(2),
                                .out = {.batch = T * C, .head = D, .token = C}};
  const Tensor qkv = cast_to(dtype, random_tensor({B, T, 3 * C}, numbers, device, 1));
  const Tensor dout = cast_to(dtype, random_tensor({B, T, C}, numbers, device, 2));
  const Tensor slopes = sizes.alibi ? Tensor::from(alibi_slopes(H), {H}, device) : Tensor();
  const AttentionResults r = {Tensor::empty({B, T, C}, dtype, device),
                              Tensor::empty({B, H, T}, DType::f32, device),
                              Tensor::empty({B, T, 3 * C}, dtype, device)};
  kernels::attention_forward({.q = qkv,
                              .k = qkv,
                              .v = qkv,
                              .alibi_slopes = slopes,
                              .out = r.out,
                              .log_sum = r.log_sum,
                              .shape = shape},
                             device.compute());
  kernels::attention_backward({.q = qkv,
                               .k = qkv,
                               .v = qkv,
                               .alibi_slopes = slopes,
                               .out = r.out,
                               .log_sum = r.log_sum,
                               .dout = dout,
                               .dq = r.dqkv,
                               .dk = r.dqkv,
                               .dv = r.dqkv,
                               .shape = shape},
                              device.compute());
  device.compute().synchronize();
  return r;
}

/// The norm of the difference over the norm of `expected`.
double relative_distance(const Tensor& got, const Tensor& expected) {
  const std::vector<double> x = got.to_doubles(), y = expected.to_doubles();
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace

TEST_CASE("attention on tensor cores is that of the ordinary cores up to rounding, in the norm" *
          doctest::test_suite("every device")) {
  // A step of keys that is left out, or a wrong D_t, changes sums of many terms by less than the
  // rounding that a test of each element must allow.
  // Three tiles of 64 or 128 keys and a part of one, by width, mask and slopes in pairs.
  const AttentionSizes every_size[] = {{.T = 65},
                                       {.T = 200, .causal = false, .alibi = true},
                                       {.T = 260, .D = 128},
                                       {.T = 130, .D = 128, .causal = false},
                                       {.T = 130, .D = 40, .alibi = true}};
  for (const Device& device : devices_of_every_generation())
    for (const AttentionSizes& sizes : every_size) {
      INFO("T ", sizes.T, ", D ", sizes.D, ", causal ", sizes.causal, ", alibi ", sizes.alibi);
      const AttentionResults plain = run_attention(DType::bf16, DType::f32, sizes, device);
      const AttentionResults mma = run_attention(DType::bf16, DType::bf16, sizes, device);
      CHECK(relative_distance(mma.out, plain.out) < 0.01);
      CHECK(relative_distance(mma.dqkv, plain.dqkv) < 0.01);
    }
}

TEST_CASE("attention on cuda has the same bits whichever thread runs first" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_of_every_generation())
    for (DType dtype : {DType::f32, DType::bf16})
      for (int64_t D : {40, 128}) {
        const AttentionResults first = run_attention(dtype, dtype, {.D = D}, device);
        for (uint64_t seed : {1, 2}) {
          emulator::set_schedule(seed);
          const AttentionResults again = run_attention(dtype, dtype, {.D = D}, device);
          emulator::set_schedule(0);
          CHECK(same_bits(first.out, again.out));
          CHECK(same_bits(first.log_sum, again.log_sum));
          CHECK(same_bits(first.dqkv, again.dqkv));
        }
      }
}
