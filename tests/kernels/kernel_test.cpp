#include "zerograd/kernels/kernel.h"

#include <utility>

#include "zerograd/kernels/elementwise/gelu.h"

using namespace zg;

TEST_CASE(
    "a kernel has a slot for each backend, and asking for a meta slot is an error that lists "
    "them") {
  const char* message =
      "gelu_forward: slot: expected cpu, cuda or hpu, got meta; a meta device stands for the "
      "backend in its traits().backend";
  CHECK_THROWS_WITH_AS(kernels::gelu_forward[Device::Type::meta], message, Unsupported);
  CHECK_THROWS_WITH_AS(std::as_const(kernels::gelu_forward)[Device::Type::meta], message,
                       Unsupported);
  CHECK(&kernels::gelu_forward[Device::Type::cpu] == &kernels::gelu_forward.slots.front());
  CHECK(&kernels::gelu_forward[Device::Type::hpu] == &kernels::gelu_forward.slots.back());

  const Device device = Device::meta(0, {}, Device::Type::cuda);
  CHECK(&kernels::gelu_forward[device.traits().backend] ==
        &kernels::gelu_forward[Device::Type::cuda]);
}
