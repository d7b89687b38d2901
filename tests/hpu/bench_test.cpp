#include <doctest/doctest.h>

#include <filesystem>
#include <set>

#include "bench/case.h"
#include "bench/measure.h"
#include "tests/support/scoped_variable.h"
#include "tests/tools/command.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

// Benchmarks of the command on the test driver. Its times say nothing about an accelerator and are
// not shown; but every measurement of an accelerator must run.
namespace {

const std::string benched_run =
    " --data sort --model-type gpt-nano --batch-size 2 --score-samples 0 --progress off "
    "--device hpu";

}  // namespace

TEST_CASE("bench refuses to run on the test driver and shows no figures") {
  const TemporaryFolder folder;
  for (const std::string line :
       {"bench kernels", "bench kernels --filter 704x192x48", "bench step --steps 1 --warm-up 0",
        "bench generate", "bench offload --size 1MiB"}) {
    CAPTURE(line);
    const std::string json = folder / "figures.json";
    const Outcome outcome = checked(zerograd(line + " --device hpu --json " + json), 6);
    CHECK(outcome.out.empty());
    CHECK(contains(outcome.error,
                   "Unsupported: --device hpu: hpu:0 is the zerograd test driver (CPU), not an "
                   "accelerator: times measured on it mean nothing"));
    CHECK(!std::filesystem::exists(json));
  }
}

TEST_CASE("training on the test driver names its device and reports no share of the matmul peak") {
  const Outcome run = checked(zerograd("train --steps 2 --log-interval 1" + benched_run));
  CHECK(contains(run.error, "zerograd test driver (CPU), not an accelerator"));
  CHECK(contains(run.out, " tokens/s"));
  CHECK(!contains(run.out, "of matmul peak"));
}

TEST_CASE("a plan for hpu counts the launches and waits of a step of GPT-2 124M") {
  const TemporaryFolder folder;
  const ScopedVariable none("ZE_ENABLE_ALT_DRIVERS", "/no/such/driver.so");
  checked(
      zerograd("plan --device hpu --model-type gpt2 --block-size 1024 --vocab-size 50257 "
               "--batch-size 16 --dropout 0 --precision bf16 --kernels " +
               folder / "launches.json"));
  const auto counts = nlohmann::json::parse(read_file(folder / "launches.json"));
  const auto &micro_batch = counts["per_micro_batch"], &step = counts["per_step"];
  INFO(micro_batch.dump(1));
  CHECK(micro_batch["launches"] <= 450);
  const auto launches = [](const nlohmann::json& part, const std::string& op) {
    int64_t sum = 0;
    for (const auto& row : part["kernels"])
      if (row["op"] == op) sum += row["launches"].get<int64_t>();
    return sum;
  };
  CHECK(launches(micro_batch, "attention_backward") == 2 * 12);
  CHECK(launches(micro_batch, "fold_gradient") <= 20);
  CHECK(launches(step, "optimizer_update") == 2);  // 27 tensors, 16 at a time
  CHECK(launches(step, "sum_of_squares") == 10);   // 149 tensors
  CHECK(step["host_waits"] == 1);                  // at its end
}

TEST_CASE("count_launches is refused on a device of hpu, where nothing counts") {
  CHECK_THROWS_WITH_AS(Device::hpu(0, {.count_launches = true}),
                       "device: launches are counted on cpu and cuda, and in plans also for hpu, "
                       "got hpu; try plan, or without count_launches (--kernels)",
                       Unsupported);
}

TEST_CASE("plan for hpu runs without a Level Zero driver and gives the same result") {
  const TemporaryFolder folder;
  const auto plan = [&](const std::string& name) {
    const Outcome outcome =
        checked(zerograd("plan --steps 2" + benched_run + " --ranks 2 --zero-stage 2" +
                         " --cpu-offload --memory-json " + folder / name));
    CHECK(contains(outcome.out, "machine: hpu, ranks as threads"));
    return read_file(folder / name);
  };
  const std::string with = plan("with.json");
  const ScopedVariable none("ZE_ENABLE_ALT_DRIVERS", "/no/such/driver.so");
  checked(zerograd("train --steps 1" + benched_run), 6);
  CHECK(plan("without.json") == with);
  CHECK(contains(with, "\"machine\":{\"backend\":\"hpu\",\"granule\":256}"));
}

TEST_CASE("every kind of kernel benchmark and each measured limit runs on an hpu device") {
  const Device device = Device::hpu();
  bench::Sizes sizes(Device::Type::cpu);
  sizes.tokens = {.N = 1024, .C = 16};  // a sequence as long as those of the cases
  sizes.logits.N = 4;
  sizes.scores = {.N = 6, .C = 32};
  sizes.hidden = sizes.flat = sizes.parameters = 1024;
  std::set<std::string> kinds, ran;
  for (const bench::Case& c : bench::kernel_cases(sizes)) {
    CAPTURE(c.text());
    const std::string kind = c.work.name + " " + name_of(c.work.dtype);
    kinds.insert(kind);
    if (c.work.flops > 4e7 || c.work.bytes() > 2e7) continue;
    c.make(device)();
    device.compute().synchronize();
    ran.insert(kind);
  }
  for (const std::string& kind : kinds) {
    if (kind.starts_with("matmul NN")) continue;  // all large; the limits have that product
    CAPTURE(kind);
    CHECK(ran.count(kind) == 1);
  }
  for (const double rate :
       {bench::measure_copy_rate(device), bench::measure_product_rate(device, DType::f32),
        bench::measure_product_rate(device, DType::bf16)})
    CHECK(rate > 0.0);
}

TEST_CASE("limits are measured with sizes that fit the accelerator's memory") {
  const Device small = Device::hpu(0, {.memory_limit = int64_t{12} << 20});
  CHECK(bench::measure_copy_rate(small) > 0.0);
  const Device none = Device::hpu(0, {.memory_limit = int64_t{1} << 20});
  CHECK_THROWS_AS(bench::measure_copy_rate(none), OutOfMemory);
}

TEST_CASE("a report of an emulated accelerator is refused") {
  const bench::Limits limits{.memory = 1e9, .read = 1e9};
  CHECK(message_of<Unsupported>([&] { bench::Report report(Device::hpu(), {.limits = limits}); }) ==
        "bench: hpu:0 is the zerograd test driver (CPU), not an accelerator: times measured on it "
        "mean nothing; expected an accelerator to measure; try Device::cpu()");
  CHECK(emulator_name(Device::Type::hpu, 1) == "zerograd test driver (CPU), not an accelerator");
  for (const int index : {-1, Device::count(Device::Type::hpu)})
    CHECK(emulator_name(Device::Type::hpu, index).empty());
  CHECK(emulator_name(Device::Type::cpu, 0).empty());
}
