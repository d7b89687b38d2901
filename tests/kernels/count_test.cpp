#include <algorithm>
#include <memory>
#include <utility>

#include "bench/op.h"
#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/launches.h"

// Counts of launches on the CPU: each call of an op is one launch, with the bytes of its operands
// and its operations, in a run and in a plan.
using namespace zg;

namespace {

constexpr DeviceOptions counting_calls{.threads = 2, .count_launches = true};

/// The counts of one call of an op's kernel, without the launches that make its operands.
LaunchCounts counted_call(const bench::OpKernel& kernel, DType dtype, const bench::Extents& extents,
                          const Device& device) {
  const bench::Call call = kernel.call({device, dtype}, extents);
  const LaunchCounts before = device.launches()->counts();
  call.run();
  return device.launches()->counts().since(before);
}

void check_one_launch(const bench::OpKernel& kernel, DType dtype, const bench::Extents& extents) {
  const Device device = Device::cpu(0, counting_calls);
  const LaunchCounts ran = counted_call(kernel, dtype, extents, device);
  CHECK(counted_call(kernel, dtype, extents, Device::meta(0, counting_calls)) == ran);
  if (kernel.is_whole_op) return;
  REQUIRE(ran.rows.size() == 1);
  CHECK(ran.rows[0].launches == 1);
  CHECK(ran.rows[0].op == kernel.call({device, dtype}, extents).kernel);
  CHECK(ran.rows[0].bytes > 0);
  CHECK(ran.rows[0].operations > 0);
}

/// A device that counts launches; row() calls one kernel and returns its counts.
struct Counted {
  Device device = Device::cpu(0, counting_calls);

  Tensor tensor(const Shape& shape, DType dtype = DType::f32) const {
    return Tensor::zeros(shape, dtype, device);
  }
  template <class Args>
  LaunchRow row(const Kernel<Args>& kernel, const Args& args) {
    const LaunchCounts before = device.launches()->counts();
    kernel(args, device.compute());
    const LaunchCounts since = device.launches()->counts().since(before);
    REQUIRE(since.rows.size() == 1);
    return since.rows[0];
  }
};

/// A function for the slot of gelu_forward that calls another op twice.
void twice_negated(const GeluForward& args, Workspace, Stream& stream) {
  kernels::unary({.op = UnaryOp::negate, .x = args.x, .y = args.y}, stream);
  kernels::unary({.op = UnaryOp::negate, .x = args.y, .y = args.y}, stream);
}

}  // namespace

TEST_CASE("a call of an op counts as one launch, which includes the ops that it calls") {
  Counted counted;
  auto& slot = kernels::gelu_forward[Device::Type::cpu];
  const auto built_in = std::exchange(slot.function, twice_negated);
  const Tensor x = counted.tensor({64}), y = counted.tensor({64});
  CHECK(counted.row(kernels::gelu_forward, {.x = x, .y = y}) == LaunchRow{.op = "gelu_forward",
                                                                          .kernel = "gelu_forward",
                                                                          .launches = 1,
                                                                          .bytes = 2 * 256,
                                                                          .operations = 64});
  slot.function = built_in;
}

TEST_CASE("a call of an op on the cpu is one launch, counted by a plan as by a run") {
  for (const bench::OpFamily& family : bench::every_op())
    for (const bench::Op& op : family)
      for (const bench::OpKernel& kernel : op.kernels)
        for (const DType dtype : {DType::f32, DType::bf16})
          for (const bench::Extents& extents : op.tested) {
            if (std::ranges::count(op.dtypes, dtype) == 0) continue;
            INFO("name ", op.name, ", ", name_of(dtype), ", ", bench::extents_text(extents));
            check_one_launch(kernel, dtype, extents);
          }
}

TEST_CASE("a counted product has 2 M N K operations and reads what it adds to") {
  Counted counted;
  const Matmul product{.a = counted.tensor({48, 32}, DType::bf16),
                       .b = counted.tensor({32, 24}, DType::bf16),
                       .c = counted.tensor({48, 24}),
                       .M = 48,
                       .N = 24,
                       .K = 32,
                       .accumulate = true};
  CHECK(counted.row(kernels::matmul, product) ==
        LaunchRow{.op = "matmul",
                  .kernel = "matmul",
                  .launches = 1,
                  .bytes = 2 * (48 * 32 + 32 * 24) + 2 * 4 * 48 * 24,
                  .operations = 2 * 48 * 24 * 32,
                  .dtype = DType::bf16,
                  .kind = KernelClass::product});
}

TEST_CASE("the products within a counted loss are part of its one launch") {
  Counted counted;
  const ProjectionCrossEntropy loss{.x = counted.tensor({6, 8}),
                                    .weight = counted.tensor({10, 8}),
                                    .targets = counted.tensor({6}, DType::i32),
                                    .loss = counted.tensor({6}),
                                    .dx = counted.tensor({6, 8}),
                                    .dweight = counted.tensor({10, 8})};
  const LaunchRow row = counted.row(kernels::projection_cross_entropy, loss);
  CHECK(row.op == "projection_cross_entropy");
  CHECK(row.launches == 1);
  CHECK(row.operations == 3 * 2 * 6 * 8 * 10);
  CHECK(row.bytes == 4 * (2 * 6 * 8 + 2 * 10 * 8 + 6 + 6));
  CHECK(row.kind == KernelClass::product);
}

TEST_CASE("counted attention has the products of the pairs that are not masked") {
  Counted counted;
  const int64_t B = 2, H = 3, T = 5, D = 4;
  const HeadLayout part{.batch = T * 3 * H * D, .head = D, .token = 3 * H * D};
  HeadLayout keys = part, values = part;
  keys.offset = H * D;
  values.offset = 2 * H * D;
  const Tensor qkv = counted.tensor({B, T, 3 * H * D});
  AttentionForward forward{.q = qkv,
                           .k = qkv,
                           .v = qkv,
                           .out = counted.tensor({B, T, H * D}),
                           .log_sum = counted.tensor({B, H, T}),
                           .shape = {.B = B,
                                     .H = H,
                                     .T = T,
                                     .keys = T,
                                     .D = D,
                                     .q = part,
                                     .k = keys,
                                     .v = values,
                                     .out = {.batch = T * H * D, .head = D, .token = H * D}}};
  const LaunchRow row = counted.row(kernels::attention_forward, forward);
  CHECK(row.kind == KernelClass::attention_forward);
  CHECK(row.operations == 2 * 2 * D * B * H * (T * (T + 1) / 2));
  CHECK(row.bytes == 4 * (4 * B * T * H * D + B * H * T));
  forward.shape.causal = false;
  CHECK(visible_pairs(forward.shape) == T * T);
  forward.shape.causal = true;
  forward.shape.window = 2;
  CHECK(visible_pairs(forward.shape) == 2 * T - 1);
}

TEST_CASE("pairs of attention are counted by a formula, which equals the count of each query") {
  for (const bool causal : {false, true})
    for (const int64_t T : {0, 1, 5, 9})
      for (const int64_t keys : {0, 1, 5, 12})
        for (const int64_t offset : {-7, -1, 0, 3, 20})
          for (const int64_t window : {0, 1, 4, 30}) {
            int64_t pairs = 0;
            for (int64_t t = 0; t < T; ++t)
              for (int64_t key = 0; key < keys; ++key) {
                const int64_t before = t + offset - key;
                pairs += (!causal || before >= 0) && (window == 0 || before < window) ? 1 : 0;
              }
            INFO("T ", T, ", keys ", keys, ", offset ", offset, ", window ", window);
            CHECK(
                visible_pairs(
                    {.T = T, .keys = keys, .offset = offset, .causal = causal, .window = window}) ==
                pairs);
          }
  // A loop over these queries would take an hour.
  constexpr int64_t many = int64_t{1} << 42;
  CHECK(visible_pairs({.T = many, .keys = 2, .causal = true}) == 2 * many - 1);
}

TEST_CASE(
    "an operand that is read and written counts twice, and a tensor that is two operands counts "
    "once") {
  Counted counted;
  const Tensor x = counted.tensor({64}), y = counted.tensor({64});
  CHECK(counted.row(kernels::gelu_forward, {.x = x, .y = y}).bytes == 2 * 256);
  CHECK(counted.row(kernels::gelu_forward, {.x = x, .y = x}).bytes == 2 * 256);
  CHECK(counted.row(kernels::binary, {.op = BinaryOp::multiply, .a = x, .b = x, .y = y}).bytes ==
        2 * 256);
  CHECK(counted.row(kernels::axpby, {.x = x, .y = y, .b = 0.0}).bytes == 2 * 256);
  CHECK(counted.row(kernels::axpby, {.x = x, .y = y, .b = 1.0}).bytes == 3 * 256);
  const FoldGradient first{.parts = {{.leaf = x, .sum = y, .first = true}}};
  CHECK(counted.row(kernels::fold_gradient, first).bytes == 2 * 256);
  const FoldGradient later{.parts = {{.leaf = x, .sum = y}}};
  const LaunchRow row = counted.row(kernels::fold_gradient, later);
  CHECK(row.bytes == 3 * 256);
  CHECK(row.operations == 64);
  CHECK(row.kind == KernelClass::optimizer);
}

TEST_CASE("a counted embedding reads its tokens' rows and not the whole table") {
  Counted counted;
  const EmbeddingForward rows{.ids = counted.tensor({6}, DType::i32),
                              .weight = counted.tensor({1000, 8}),
                              .y = counted.tensor({6, 8})};
  const LaunchRow row = counted.row(kernels::embedding_forward, rows);
  CHECK(row.bytes == 6 * 4 + 2 * 6 * 8 * 4);
  CHECK(row.operations == 6 * 8);
}

TEST_CASE("streams other than compute() and devices without count_launches count nothing") {
  const Device device = Device::cpu(0, counting_calls);
  const Tensor x = Tensor::zeros({64}, DType::f32, device);
  const LaunchCounts before = device.launches()->counts();
  const std::unique_ptr<Stream> beside = device.make_stream("beside");
  kernels::gelu_forward({.x = x, .y = x}, *beside);
  CHECK(device.launches()->counts() == before);
  CHECK(Device::cpu().launches() == nullptr);
}
