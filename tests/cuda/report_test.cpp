#include <doctest/doctest.h>

#include <algorithm>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "bench/case.h"
#include "tests/support/error_message.h"
#include "zerograd/bench.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/tensor.h"

using namespace zg;
using namespace zg::testing;
using bench::Effort;
using bench::Limits;
using bench::Report;
using bench::Row;

namespace {

constexpr Limits limits{
    .matmul_f32 = 100e9, .matmul_bf16 = 400e9, .memory = 10e9, .update = 10e9, .read = 10e9};
constexpr Effort report_effort{
    .warm_up = 3, .fewest = 4, .samples = 4, .seconds = 0.0, .sample_seconds = 0.0};

}  // namespace

TEST_CASE("a benchmark report of a GPU has limits and rows, and measures a replaced kernel" *
          doctest::test_suite("every device")) {
  const Device device = Device::cuda();
  Report report(device, {.effort = report_effort, .limits = limits});
  const Unary call{.op = UnaryOp::relu,
                   .x = Tensor::full({64}, -1.0, DType::f32, device),
                   .y = Tensor::full({64}, 7.0, DType::f32, device)};
  const auto run = [&] { kernels::unary(call, device.compute()); };
  const bench::Work work{.name = "relu", .shape = "64", .flops = 64, .read = 2e6, .written = 2e6};
  const Row built_in = report.add(work, run);
  CHECK(call.y.to_doubles()[63] == 0.0);
  static int calls = 0;
  static Kernel<Unary>::Function original = nullptr;
  calls = 0;
  original = std::exchange(kernels::unary[Device::Type::cuda].function,
                           [](const Unary& args, Workspace workspace, Stream& stream) {
                             ++calls;
                             original(args, workspace, stream);
                           });
  report.add(work, run);
  kernels::unary[Device::Type::cuda].function = original;
  CHECK(calls >= report_effort.fewest);
  report.add_unmeasured(work, "has no kernel");
  CHECK(built_in.type == Device::Type::cuda);
  CHECK(built_in.threads == 1);
  CHECK(std::string(built_in.bound.name) == "memory");
  CHECK(built_in.bound.seconds == 4e6 / 10e9);
  CHECK(built_in.cache().empty());
  const std::string text = bench::table({report});
  CHECK(contains(text,
                 "| limit: matmul peak | | f32 | 1 | | | 100.0 |  | | | |\n"
                 "| limit: matmul peak | | bf16 | 1 | | | 400.0 |  | | | |\n"
                 "| limit: memory, a copy | | f32 | 1 | | |  | 10.0 | | | |\n"
                 "| relu | 64 | f32 | 1 | "));
  CHECK(contains(text, "| relu | 64 | f32 | 1 | has no kernel | | | | | | |\n"));
  const auto record = nlohmann::ordered_json::parse(bench::json({report}));
  CHECK(record["machine"] == nlohmann::ordered_json{{"device", device.description()}});
  CHECK(record["limits"][0]["threads"] == 1);
  CHECK(record["limits"][0]["memory"] == 10e9);
  CHECK(record["rows"].size() == 2);
  CHECK(record["rows"][1]["cache"].is_null());
  const Report other(Device::cpu(), {.effort = report_effort, .limits = limits});
  CHECK(contains(message_of<ConfigError>([&] {
                   bench::table({other, report});
                 }),
                 "table: reports of cpu:0 and cuda:0; expected one kind of device; call it once "
                 "for each kind"));
}

TEST_CASE("a benchmark case that does not fit the GPU's memory is reported in its row" *
          doctest::test_suite("every device")) {
  const Device small = Device::cuda(0, {.memory_limit = int64_t{12} << 20});
  Report report(small, {.effort = report_effort, .limits = limits});
  bench::Sizes sizes(Device::Type::cpu);
  for (const int64_t numel : {int64_t{1} << 10, int64_t{4} << 20}) {
    sizes.flat = sizes.hidden = sizes.parameters = numel;
    const std::vector<bench::Case> cases = bench::kernel_cases(sizes);
    const bench::Case& adamw =
        *std::ranges::find_if(cases, [](const bench::Case& c) { return c.work.name == "adamw"; });
    CAPTURE(adamw.text());
    const Row row = bench::add(report, adamw);
    const bool fits = adamw.work.bytes() < 12e6;
    CHECK(row.unmeasured == (fits ? "" : "does not fit its memory"));
    CHECK(row.seconds.empty() == !fits);
  }
  CHECK(report.rows().size() == 2);
}
