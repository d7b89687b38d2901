#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/error_message.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/device.h"

using namespace zg;
using namespace zg::testing;

namespace {

Var values(const Device& device) { return Var(Tensor::zeros({2, 2}, DType::f32, device)); }

/// The error of an operation on both.
std::string refusal_of(const Device& one, const Device& other) {
  return message_of<DeviceError>([&] { add(values(one), values(other)); });
}

}  // namespace

TEST_CASE("the error for two devices with the same name says that Device::cpu had other options") {
  const Device first = Device::cpu(), second = Device::cpu(0, {.separate = true});
  CHECK(refusal_of(first, second) ==
        "add: tensors on two devices, made by two calls of Device::cpu() with different options; "
        "make "
        "one and pass it on (both are named cpu:0)");
  CHECK(contains(refusal_of(Device::meta(), Device::meta()),
                 "made by two calls of Device::meta(); make one and pass it on"));
  CHECK(refusal_of(first, Device::cpu(1)) ==
        "add: tensors on two devices, cpu:0 and cpu:1; copy one over first");
  const Device handle = first;
  CHECK_NOTHROW(add(values(first), values(handle)));
}

TEST_CASE("every kind of op refuses operands on two devices") {
  const Device a = Device::cpu(), b = Device::cpu(0, {.separate = true});
  const auto matrix = [](const Device& device) { return values(device); };
  const auto row = [](const Device& device) { return Var(Tensor::zeros({2}, DType::f32, device)); };
  const auto ids = [](const Device& device) { return Tensor::zeros({2}, DType::i32, device); };
  const auto heads = [](const Device& device) {
    return Var(Tensor::zeros({1, 1, 2, 16}, DType::f32, device));
  };
  const Tensor columns_of_b = Tensor::zeros({2, 2}, DType::i64, b);
  const Var flags_of_b(Tensor::zeros({2, 2}, DType::boolean, b));
  const std::pair<const char*, std::function<void()>> operations[] = {
      {"maximum", [&] { maximum(matrix(a), matrix(b)); }},
      {"where", [&] { where(flags_of_b, matrix(a), matrix(a)); }},
      {"less", [&] { less(matrix(a), matrix(b)); }},
      {"matmul", [&] { matmul(matrix(a), matrix(b)); }},
      {"linear", [&] { linear(matrix(a), matrix(b)); }},
      {"linear's bias", [&] { linear(matrix(a), matrix(a), row(b)); }},
      {"feed_forward", [&] { feed_forward(matrix(a), matrix(a), row(a), matrix(b), row(a)); }},
      {"concat",
       [&] {
         concat(std::vector<Var>{matrix(a), matrix(b)}, 0);
       }},
      {"gather", [&] { gather(matrix(a), 0, columns_of_b); }},
      {"scatter_add", [&] { scatter_add(matrix(a), 0, columns_of_b, matrix(a)); }},
      {"embedding",
       [&] {
         embedding(ids(b).view({1, 2}), matrix(a));
       }},
      {"layer_norm", [&] { layer_norm(matrix(a), row(a), row(b)); }},
      {"add_layer_norm", [&] { add_layer_norm(matrix(a), matrix(b), row(a), row(a)); }},
      {"rms_norm", [&] { rms_norm(matrix(a), row(b)); }},
      {"layer_norm_of_sum", [&] { layer_norm_of_sum(matrix(a), matrix(b), row(a), row(a)); }},
      {"rms_norm_of_sum", [&] { rms_norm_of_sum(matrix(a), matrix(b), row(a)); }},
      {"attention", [&] { attention(heads(a), heads(a), heads(b), {}); }},
      {"cross_entropy", [&] { cross_entropy(matrix(a), ids(b)); }},
      {"projection_cross_entropy", [&] { projection_cross_entropy(matrix(a), matrix(b), ids(a)); }},
      {"mse", [&] { mse(matrix(a), matrix(b)); }}};
  for (const auto& [name, operation] : operations) {
    CAPTURE(name);
    const std::string message = message_of<DeviceError>(operation);
    CAPTURE(message);
    CHECK(contains(message,
                   "two devices, made by two calls of Device::cpu() with different options"));
  }
}

TEST_CASE(
    "a rank that uses a tensor of another rank or from outside run_local gets an error with a "
    "remedy") {
  const Device outside = Device::cpu();
  std::vector<Device> devices(2, outside);
  std::vector<std::string> from_outside(2), of_a_peer(2);
  run_local(2, [&](Communicator& comm, const Device& own) {
    const auto rank = static_cast<size_t>(comm.rank());
    devices[rank] = own;
    comm.wait(comm.barrier("devices are known"));
    from_outside[rank] = difference(own, outside);
    of_a_peer[rank] = difference(own, devices[1 - rank]);
    // The same where it comes first.
    CHECK(difference(outside, own) == from_outside[rank]);
    comm.wait(comm.barrier("devices were used"));
  });
  CHECK(from_outside[1] ==
        "two devices, cpu:1, which rank 1 was given, and cpu:0 from elsewhere; a rank needs "
        "tensors of its own device, the one that its program was given");
  CHECK(of_a_peer[0] ==
        "two devices, cpu:0 of rank 0 and cpu:1 of rank 1; ranks exchange values by the "
        "collectives of their Communicator");
  // As the caller of run_local sees it.
  const Var given = values(outside);
  CHECK_ERROR(DeviceError, "from elsewhere; a rank needs tensors of its own device",
              run_local(2, [&](Communicator&, const Device& own) { add(given, values(own)); }));
}
