#include "zerograd/kernels/attention/attention.h"

#include <doctest/doctest.h>

#include "tests/fakes/cuda/block.h"
#include "tests/support/op_case.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct AttentionResults {
  Tensor out, log_sum, dqkv;
};

AttentionResults run_attention(DType dtype, int64_t D, const Device& device) {
  const int64_t B = 2, H = 2, T = 150, C = H * D;
  const auto part = [&](int64_t i) {
    return HeadLayout{.offset = i * C, .batch = T * 3 * C, .head = D, .token = 3 * C};
  };
  const AttentionShape shape = {.B = B,
                                .H = H,
                                .T = T,
                                .keys = T,
                                .D = D,
                                .q = part(0),
                                .k = part(1),
                                .v = part(2),
                                .out = {.batch = T * C, .head = D, .token = C}};
  const Tensor qkv = random_tensor({B, T, 3 * C}, dtype, device, 1);
  const Tensor dout = random_tensor({B, T, C}, dtype, device, 2);
  const AttentionResults r = {Tensor::empty({B, T, C}, dtype, device),
                              Tensor::empty({B, H, T}, DType::f32, device),
                              Tensor::empty({B, T, 3 * C}, dtype, device)};
  kernels::attention_forward(
      {.q = qkv, .k = qkv, .v = qkv, .out = r.out, .log_sum = r.log_sum, .shape = shape},
      device.compute());
  kernels::attention_backward({.q = qkv,
                               .k = qkv,
                               .v = qkv,
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

}  // namespace

TEST_CASE("attention on cuda has the same bits whichever thread runs first" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_of_every_generation())
    for (DType dtype : {DType::f32, DType::bf16})
      for (int64_t D : {40, 128}) {
        const AttentionResults first = run_attention(dtype, D, device);
        for (uint64_t seed : {1, 2}) {
          emulator::set_schedule(seed);
          const AttentionResults again = run_attention(dtype, D, device);
          emulator::set_schedule(0);
          CHECK(same_bits(first.out, again.out));
          CHECK(same_bits(first.log_sum, again.log_sum));
          CHECK(same_bits(first.dqkv, again.dqkv));
        }
      }
}
