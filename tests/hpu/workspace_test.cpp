#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "tests/support/op_case.h"
#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/norm/layer_norm.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/kernels/reduce/reduce.h"

using namespace zg;
using namespace zg::testing;

namespace {

/// Calls the kernel with exactly the scratch that it states, and checks that the bytes after it do
/// not change.
template <class Args>
void check_scratch(const Kernel<Args>& kernel, const Args& args, const Device& device) {
  CAPTURE(std::string(kernel.name));
  constexpr int64_t behind = 1 << 16;
  constexpr int mark = 0xa5;
  const int64_t bytes = kernel[Device::Type::hpu].workspace_bytes(args, device.traits());
  REQUIRE(bytes > 0);
  const Tensor scratch = Tensor::full({bytes + behind}, mark, DType::u8, device);
  const Workspace workspace{.data = scratch.raw(), .bytes = bytes, .tensor = &scratch};
  kernel[Device::Type::hpu].function(args, workspace, device.compute());
  const std::vector<uint8_t> rest = scratch.flat(bytes, behind).to_host<uint8_t>();
  CHECK(std::count(rest.begin(), rest.end(), mark) == behind);
}

}  // namespace

TEST_CASE("kernels use no more scratch than they state" * doctest::test_suite("every device")) {
  const Device device = Device::hpu();
  const auto f32 = [&](const Shape& shape) {
    return random_tensor(shape, DType::f32, device, 1, 0.5, 1.0);
  };
  const int64_t N = 37, C = 65, V = 129;
  check_scratch(kernels::layer_norm_backward,
                {.dy = f32({N, C}),
                 .x = f32({N, C}),
                 .gamma = f32({C}),
                 .mean = f32({N}),
                 .rstd = f32({N}),
                 .dx = f32({N, C}),
                 .dgamma = f32({C}),
                 .dbeta = f32({C})},
                device);
  check_scratch(kernels::rms_norm_backward,
                {.dy = f32({N, C}),
                 .x = f32({N, C}),
                 .gamma = f32({C}),
                 .rstd = f32({N}),
                 .dx = f32({N, C}),
                 .dgamma = f32({C})},
                device);
  check_scratch(kernels::reduce,
                {.op = ReduceOp::sum, .x = f32({5000, 7}), .y = f32({7}), .axes = 1}, device);
  const Tensor ids = Tensor::zeros({N}, DType::i64, device);
  check_scratch(kernels::embedding_backward,
                {.ids = ids, .dy = f32({N, C}), .dweight = f32({V, C})}, device);
  check_scratch(kernels::projection_cross_entropy,
                {.x = f32({N, C}),
                 .weight = f32({V, C}),
                 .targets = ids,
                 .loss = f32({N}),
                 .dx = f32({N, C}),
                 .dweight = f32({V, C})},
                device);
  AttentionShape shape{.B = 2, .H = 3, .T = 37, .keys = 37, .D = 5};
  shape.q = shape.k = shape.v = shape.out = {0, 3 * 37 * 5, 37 * 5, 5};
  const Shape heads{2, 3, 37, 5};
  check_scratch(kernels::attention_backward,
                {.q = f32(heads),
                 .k = f32(heads),
                 .v = f32(heads),
                 .out = f32(heads),
                 .log_sum = f32({2, 3, 37}),
                 .dout = f32(heads),
                 .dq = f32(heads),
                 .dk = f32(heads),
                 .dv = f32(heads),
                 .shape = shape},
                device);
}
