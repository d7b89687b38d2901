#include "zerograd/kernels/elementwise/gated.h"

#include "tests/support/op_case.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr DType gated_dtypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
constexpr Gate gate_forms[] = {Gate::silu, Gate::gelu_tanh, Gate::gelu_erf};

GatedBackward gated_gradients(int64_t n, DType dtype, Gate form, const Device& device) {
  return {.dy = random_tensor({n}, dtype, device, 1),
          .gate = random_tensor({n}, dtype, device, 2, -5.0, 5.0),
          .up = random_tensor({n}, dtype, device, 3),
          .dgate = Tensor::empty({n}, dtype, device),
          .dup = Tensor::empty({n}, dtype, device),
          .form = form};
}

}  // namespace

TEST_CASE("gated_forward and gated_backward may write over their operands" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(gated_dtypes, device))
      for (Gate form : gate_forms)
        for (int64_t n : {1, 33, 4096, 9001}) {
          INFO(level_of(device), ", ", name_of(dtype), ", ", name_of(form), ", n ", n);
          const GatedBackward separate = gated_gradients(n, dtype, form, device);
          kernels::gated_backward(separate, device.compute());
          GatedBackward in_place = gated_gradients(n, dtype, form, device);
          in_place.dgate = in_place.dy;
          in_place.dup = in_place.up;
          kernels::gated_backward(in_place, device.compute());
          CHECK(same_bits(in_place.dgate, separate.dgate));
          CHECK(same_bits(in_place.dup, separate.dup));

          const Tensor y = Tensor::empty({n}, dtype, device);
          const GatedBackward operands = gated_gradients(n, dtype, form, device);
          kernels::gated_forward({.gate = operands.gate, .up = operands.up, .y = y, .form = form},
                                 device.compute());
          kernels::gated_forward(
              {.gate = operands.gate, .up = operands.up, .y = operands.gate, .form = form},
              device.compute());
          CHECK(same_bits(operands.gate, y));
        }
}

TEST_CASE(
    "a gate activation is the identity for large inputs, 0 for very negative ones, and keeps NaN" *
    doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level())
    for (Gate form : gate_forms) {
      INFO(level_of(device), ", ", name_of(form));
      // Exact on the CPU; elsewhere functions may be off by 4 ulp (gelu_test.cpp), and three
      // operations round: one product more than in gelu.
      const bool is_cpu = device.type() == Device::Type::cpu;
      const double error = is_cpu ? 0.0 : (4 * 2 + 3) * unit_roundoff(DType::f32);
      const Tensor gate =
          Tensor::from(std::vector<float>{0.0f, 30.0f, -120.0f, 3e9f, -3e9f, NAN}, {6}, device);
      const Tensor up = Tensor::full({6}, 2.0, DType::f32, device),
                   y = random_tensor({6}, DType::f32, device, 1);
      kernels::gated_forward({.gate = gate, .up = up, .y = y, .form = form}, device.compute());
      CHECK(excess(y, {0.0, 60.0, 0.0, double{6e9f}, 0.0, NAN}, 0.0, error) <= 1);
      const GatedBackward backward{.dy = Tensor::full({6}, 3.0, DType::f32, device),
                                   .gate = gate,
                                   .up = up,
                                   .dgate = Tensor::empty({6}, DType::f32, device),
                                   .dup = Tensor::empty({6}, DType::f32, device),
                                   .form = form};
      kernels::gated_backward(backward, device.compute());
      CHECK(excess(backward.dgate, {3.0, 6.0, 0.0, 6.0, 0.0, NAN}, 0.0, error) <= 1);
      CHECK(excess(backward.dup, {0.0, 90.0, 0.0, double{9e9f}, 0.0, NAN}, 0.0, error) <= 1);
    }
}

TEST_CASE("gated kernels refuse operands of different shape or dtype") {
  const Device device = Device::meta();
  const Tensor x = Tensor::empty({4, 8}, DType::bf16, device);
  CHECK_THROWS_WITH_AS(
      kernels::gated_forward({.gate = x, .up = x.slice(0, 3), .y = x}, device.compute()),
      "gated_forward: up has shape [3, 8]; expected [4, 8]", ShapeError);
  const Tensor wide = Tensor::empty({4, 8}, DType::f32, device);
  CHECK_THROWS_WITH_AS(
      kernels::gated_backward({.dy = x, .gate = x, .up = x, .dgate = x, .dup = wide},
                              device.compute()),
      "gated_backward: dup holds f32; expected bf16", DTypeError);
}
