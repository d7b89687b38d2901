#include "zerograd/kernels/elementwise/gelu.h"

#include "tests/kernels/guarded_call.h"
#include "tests/support/op_case.h"
#include "tests/support/tested_type.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr Activation forms[] = {Activation::gelu_tanh, Activation::gelu_erf};

}  // namespace

TEST_CASE("gelu_backward may write over dy" * doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device))
      for (Activation form : forms)
        for (int64_t n : {1, 33, 9001}) {
          INFO(level_of(device), ", ", name_of(dtype), ", n ", n);
          const GeluBackward apart{.dy = random_tensor({n}, dtype, device, 2),
                                   .x = random_tensor({n}, dtype, device, 1, -5.0, 5.0),
                                   .dx = Tensor::empty({n}, dtype, device),
                                   .activation = form};
          kernels::gelu_backward(apart, device.compute());
          GeluBackward in_place = apart;
          in_place.dx = in_place.dy;
          kernels::gelu_backward(in_place, device.compute());
          CHECK(same_bits(in_place.dx, apart.dx));
        }
}

TEST_CASE("gelu_backward gives y the bits of gelu_forward, also where y is x" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device))
      for (Activation form : forms)
        for (int64_t n : {1, 33, 9000, 9001})
          for (int64_t begin : {0, 1}) {  // the second begins off 16 bytes
            INFO(level_of(device), ", ", name_of(dtype), ", n ", n, ", begin ", begin);
            const Tensor x =
                random_tensor({n + 1}, dtype, device, 1, -5.0, 5.0).slice(begin, begin + n);
            const Tensor dy = random_tensor(x.shape(), dtype, device, 2);
            const GeluForward forward{
                .x = x, .y = Tensor::empty(x.shape(), dtype, device), .activation = form};
            kernels::gelu_forward(forward, device.compute());
            const GeluBackward alone{.dy = dy,
                                     .x = x,
                                     .dx = Tensor::empty(x.shape(), dtype, device),
                                     .activation = form};
            kernels::gelu_backward(alone, device.compute());
            GeluBackward both = alone;
            both.dx = Tensor::empty(x.shape(), dtype, device);
            both.y = Tensor::empty(x.shape(), dtype, device);
            kernels::gelu_backward(both, device.compute());
            CHECK(same_bits(both.dx, alone.dx));
            CHECK(same_bits(both.y, forward.y));
            both.dx = dy;
            both.y = x;
            kernels::gelu_backward(both, device.compute());
            CHECK(same_bits(dy, alone.dx));
            CHECK(same_bits(x, forward.y));
          }
}

TEST_CASE("gelu is the identity for large inputs, 0 for very negative ones, and keeps NaN" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level())
    for (Activation form : forms) {
      CAPTURE(level_of(device));
      // Exact, except that erfcf of CUDA may be off by 4 ulp (CUDA C++ Programming Guide,
      // "Mathematical Functions"), and native_recip of HPU by 2 on the test driver; a product and a
      // sum round.
      const bool is_cpu = device.type() == Device::Type::cpu;
      const double error = is_cpu ? 0.0 : (4 * 2 + 2) * unit_roundoff(DType::f32);
      const Tensor x =
          Tensor::from(std::vector<float>{0.0f, 30.0f, -30.0f, 3e9f, -3e9f, NAN}, {6}, device);
      const GeluForward forward{
          .x = x, .y = Tensor::empty({6}, DType::f32, device), .activation = form};
      kernels::gelu_forward(forward, device.compute());
      CHECK(excess(forward.y, {0.0, 30.0, 0.0, 3e9, 0.0, NAN}, 0.0, error) <= 1);
      const GeluBackward backward{.dy = Tensor::full({6}, 2.0, DType::f32, device),
                                  .x = x,
                                  .dx = Tensor::empty({6}, DType::f32, device),
                                  .activation = form};
      kernels::gelu_backward(backward, device.compute());
      CHECK(excess(backward.dx, {1.0, 2.0, 0.0, 2.0, 0.0, NAN}, 0.0, error) <= 1);
    }
}

TEST_CASE("gelu refuses wrong shapes, dtypes and activations") {
  const Device device = Device::meta();
  const Tensor x = Tensor::empty({4, 8}, DType::bf16, device);
  CHECK_THROWS_WITH_AS(kernels::gelu_forward({.x = x, .y = x.slice(0, 3)}, device.compute()),
                       "gelu_forward: y has shape [3, 8]; expected [4, 8]", ShapeError);
  CHECK_THROWS_WITH_AS(
      kernels::gelu_forward({.x = x, .y = x, .activation = Activation::none}, device.compute()),
      "gelu_forward: activation is none; expected Activation::gelu_tanh or gelu_erf", ConfigError);
  const Tensor ids = Tensor::empty({4}, DType::i32, device);
  CHECK_THROWS_WITH_AS(kernels::gelu_forward({.x = ids, .y = ids}, device.compute()),
                       "gelu_forward: x holds i32; expected f64 or f32 or bf16 or f16", DTypeError);
  const Tensor dy = Tensor::empty({4, 8}, DType::f32, device);
  CHECK_THROWS_WITH_AS(kernels::gelu_backward({.dy = dy, .x = x, .dx = x}, device.compute()),
                       "gelu_backward: dy holds f32; expected bf16", DTypeError);
  CHECK_THROWS_WITH_AS(
      kernels::gelu_backward({.dy = x, .x = x, .dx = x, .y = x.slice(0, 3)}, device.compute()),
      "gelu_backward: y has shape [3, 8]; expected [4, 8]", ShapeError);
}

TEST_CASE("the kernel tests on accelerators run with memory guards installed" *
          doctest::test_suite("every device")) {
  CHECK(guards_installed == (tested_type != Device::Type::cpu));
}
