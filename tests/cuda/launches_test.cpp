#include "zerograd/runtime/launches.h"

#include <doctest/doctest.h>

#include <string>

#include "bench/op.h"
#include "tests/kernels/attention/attention_case.h"
#include "tests/support/scoped_variable.h"
#include "zerograd/kernels/matmul/matmul.h"

// A plan counts the launches of a run, because both run the same host code. Here by op; whole steps
// are in tests/cuda/command_test.cpp.
using namespace zg;
using namespace zg::testing;

namespace {

constexpr DeviceOptions counting{.threads = 2, .count_launches = true};

/// One row a line, for messages and comparison.
std::string text_of_counts(const LaunchCounts& counts) {
  std::string text = "host waits " + std::to_string(counts.host_waits);
  for (const LaunchRow& row : counts.rows)
    text += "\n" + row.op + " " + row.kernel + ": launches " + std::to_string(row.launches) +
            ", blocks " + std::to_string(row.blocks) + ", bytes " + std::to_string(row.bytes) +
            ", operations " + std::to_string(row.operations);
  return text;
}

/// The launches of one call, with those of its operands' copies and fills.
LaunchCounts counts_of(const bench::OpKernel& kernel, DType dtype, const bench::Extents& extents,
                       const Device& device) {
  kernel.call({device, dtype}, extents).run();
  device.compute().synchronize();
  return device.launches()->counts();
}

/// Returns the number of kernels that were launched; checks that a plan and a run count the same.
size_t check_counts(const bench::Op& op) {
  size_t kernels = 0;
  size_t number = 0;
  for (const bench::OpKernel& kernel : op.kernels)
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bench::Extents& extents : op.tested) {
        if (number++ % 2 == 1) continue;  // the emulated device is slow: it has every other case
        if (std::find(op.dtypes.begin(), op.dtypes.end(), dtype) == op.dtypes.end()) continue;
        INFO("name ", op.name, ", ", name_of(dtype), ", ", bench::extents_text(extents));
        const LaunchCounts ran = counts_of(kernel, dtype, extents, Device::cuda(0, counting));
        const LaunchCounts planned =
            counts_of(kernel, dtype, extents, Device::meta(0, counting, Device::Type::cuda));
        CHECK(text_of_counts(planned) == text_of_counts(ran));
        for (const LaunchRow& row : ran.rows) {
          CAPTURE(row.kernel);
          CHECK(row.bytes >= 0);
          if (row.op != "copy") kernels += static_cast<size_t>(row.launches);
        }
      }
  return kernels;
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("a plan counts the launches, blocks, bytes and operations of every op as a run does") {
  for (const bench::OpFamily& family : bench::every_op())
    for (const bench::Op& op : family) {
      CAPTURE(op.name);
      CHECK(check_counts(op) > 0);
    }
}

TEST_CASE("a plan takes a product for cuBLASLt's exactly where a run does") {
  const ScopedVariable wish("ZG_CUDA_MATMUL", "cublaslt");
  for (const bench::Op& op : bench::product_ops()) check_counts(op);
}

TEST_CASE("a plan counts the product of a weight's gradient and the bias's as a run does") {
  constexpr int64_t rows = 300, in = 16, out = 24;
  for (const char* wish : {"own", "cublaslt"}) {
    CAPTURE(wish);
    const ScopedVariable variable("ZG_CUDA_MATMUL", wish);
    const auto counts_on = [](const Device& device) {
      const auto empty = [&](const Shape& shape, DType dtype) {
        return Tensor::empty(shape, dtype, device);
      };
      kernels::matmul({.a = empty({rows, out}, DType::bf16),
                       .b = empty({rows, in}, DType::bf16),
                       .c = empty({out, in}, DType::f32),
                       .M = out,
                       .N = in,
                       .K = rows,
                       .transpose_a = true,
                       .row_sums = empty({out}, DType::f32)},
                      device.compute());
      return text_of_counts(device.launches()->counts());
    };
    const std::string planned = counts_on(Device::meta(0, counting, Device::Type::cuda));
    CHECK(planned == counts_on(Device::cuda(0, counting)));
    CHECK((planned.find("reduce") == std::string::npos) == (std::string(wish) == "cublaslt"));
  }
}

TEST_CASE("attention of Llama-like models, windows and documents takes the kernels with wgmma") {
  const std::vector<int64_t> documents = {31, 100};
  for (const Problem& p :
       {Problem{.H = 8, .kv_heads = 2}, Problem{.H = 2, .window = 50},
        Problem{.H = 2, .documents = documents},
        Problem{.H = 8, .alibi = true, .kv_heads = 1, .window = 50, .documents = documents}}) {
    Problem sized = p;
    sized.B = 1, sized.T = sized.keys = 131, sized.D = 64, sized.form = Form::separate;
    CAPTURE(sized.str());
    const Device device = Device::cuda(0, counting);
    run(make(sized, DType::bf16, device), device);
    device.compute().synchronize();
    std::string kernels;
    for (const LaunchRow& row : device.launches()->counts().rows)
      if (row.op.starts_with("attention") && !row.kernel.starts_with("check"))
        kernels += row.kernel + " ";
    CHECK(kernels == "hopper_backward_keys hopper_backward_queries hopper_forward ");
  }
}

TEST_CASE("the bytes and operations of a product are those of its matrices") {
  const Device device = Device::meta(0, counting, Device::Type::cuda);
  const auto bf16_of = [&](const Shape& shape) {
    return Tensor::empty(shape, DType::bf16, device);
  };
  const Tensor c = Tensor::empty({48, 24}, DType::f32, device);
  kernels::matmul({.a = bf16_of({48, 32}),
                   .b = bf16_of({32, 24}),
                   .c = c,
                   .M = 48,
                   .N = 24,
                   .K = 32,
                   .accumulate = true},
                  device.compute());
  const LaunchCounts counts = device.launches()->counts();
  REQUIRE(counts.rows.size() == 1);
  CHECK(counts.rows[0].kernel == "mma_multiply");
  CHECK(counts.launches() == 1);
  CHECK(counts.bytes() == 2 * (48 * 32 + 32 * 24) + 2 * 4 * 48 * 24);
  CHECK(counts.operations() == 2 * 48 * 32 * 24);
  CHECK(counts.host_waits == 0);
}

TEST_CASE("memory of a plan that counts launches has addresses and no content") {
  const Device device = Device::meta(0, counting, Device::Type::cuda);
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3}, {3}, device);
  CHECK(x.raw() != nullptr);
  CHECK(reinterpret_cast<uintptr_t>(x.raw()) % arena_granule == 0);
  CHECK(x.to_host<float>() == std::vector<float>(3));
  const LaunchCounts counts = device.launches()->counts();
  CHECK(text_of_counts(counts) ==
        "host waits 1\ncopy cudaMemcpyAsync: launches 2, blocks 0, bytes 24, operations 0");
  CHECK(Device::meta(0, {}, Device::Type::cuda).launches() == nullptr);
}

TEST_SUITE_END();
