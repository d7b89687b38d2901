#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/tools/command.h"
#include "zerograd/runtime/step_time.h"
#include "zerograd/runtime/storage/file_io.h"

// --kernels on the CPU and --peaks. On CUDA: tests/cuda/command_test.cpp.
using namespace zg;
using namespace zg::testing;

namespace {

/// The text of --kernels of a command, train or plan, on the CPU.
std::string cpu_kernels_of(const std::string& command, const std::string& flags) {
  const TemporaryFolder folder;
  const std::string file = folder / "kernels.json";
  checked(zerograd(command +
                   " --data sort --log-interval 0 --score-samples 0 --progress off --steps 2 " +
                   flags + " --kernels " + file));
  return read_text(file);
}

std::string write_peaks(const std::string& path, const Peaks& peaks) {
  std::ofstream(path) << peaks.json();
  return path;
}

/// 1 GB/s and 1 GFLOP/s for every kernel.
Peaks slow_peaks() {
  return {.name = "slow",
          .bandwidth = {{{1.0, 1e9}}},
          .operations = {{"f32", 1e9}, {"bf16", 1e9}},
          .call_seconds = 1e-6,
          .efficiencies = {
              {.bandwidth = {{{1.0, 1.0}}}, .source = "a test"},
              {.kind = "product", .operations = {{{1.0, 1.0}}}, .source = "a test"},
              {.kind = "attention_forward", .operations = {{{1.0, 1.0}}}, .source = "a test"},
              {.kind = "attention_backward", .operations = {{{1.0, 1.0}}}, .source = "a test"}}};
}

}  // namespace

TEST_CASE("plan counts the calls of ops in a step on the cpu as a run does") {
  const std::string llama = "--model-type llama --n-layer 2 --n-head 2 --n-embd 32 ";
  for (const std::string& flags :
       {std::string("--model-type gpt-nano --batch-size 2"),
        std::string("--model-type gpt-nano --batch-size 2 --precision bf16 --tied --threads 2"),
        std::string("--model-type gpt-nano --batch-size 1 --grad-accum 3 --dropout 0"),
        std::string("--model-type gpt-nano --batch-size 2 --activation-checkpoint"),
        llama + "--batch-size 2 --num-query-groups 1 --precision bf16",
        llama + "--batch-size 2 --optimizer muon",
        std::string("--model-type gpt-nano --batch-size 1 --zero-stage 3 --ranks 2")}) {
    CAPTURE(flags);
    const std::string ran = cpu_kernels_of("train", flags);
    CHECK(cpu_kernels_of("plan", flags) == ran);
    const auto record = nlohmann::json::parse(ran);
    CHECK(record["step"] == 1);
    CHECK(record["per_micro_batch"]["host_waits"] == 0);
    int64_t products = 0;
    for (const char* part : {"per_micro_batch", "per_step"}) {
      CHECK(record[part]["launches"] > 0);
      for (const auto& row : record[part]["kernels"]) {
        CAPTURE(row.dump());
        CHECK(row["bytes"] > 0);
        if (row["class"] == "product") products += row["operations"].get<int64_t>();
      }
    }
    CHECK(products > 0);
  }
}

TEST_CASE("train writes --kernels after the counted step and not at the end of the run") {
  const TemporaryFolder folder;
  const std::string file = folder / "kernels.json";
  const Outcome outcome = zerograd(
      "train --data sort --model-type gpt-nano --batch-size 2 --score-samples 0 --progress off "
      "--steps 6 --inject rank=0,step=4,fault=throw --kernels " +
      file);
  CHECK(outcome.status != 0);
  CHECK(nlohmann::json::parse(read_text(file))["step"] == 1);
}

TEST_CASE("plan --peaks predicts the time of a step, of its parts and of each kernel") {
  const TemporaryFolder folder;
  const std::string file = folder / "kernels.json";
  const std::string run =
      "plan --data sort --model-type gpt-nano --batch-size 4 --grad-accum 3 --kernels " + file;
  const Outcome counted = checked(zerograd(run));
  CHECK(contains(counted.out, "\nkernels " + file.substr(0, 20)));
  CHECK_FALSE(contains(counted.out, "predicted"));
  const Outcome outcome =
      checked(zerograd(run + " --peaks " + write_peaks(folder / "peaks.json", slow_peaks())));
  CHECK(contains(outcome.out, "\npredicted on slow: a micro-batch "));
  const auto record = nlohmann::json::parse(read_text(file));
  double micro_batch = 0.0, once = 0.0;
  for (const auto& row : record["per_micro_batch"]["kernels"]) {
    const double bytes = row["bytes"], operations = row["operations"], launches = row["launches"];
    const bool multiplies = row["class"] != "memory" && row["class"] != "copy";
    const double work = std::max(bytes, multiplies ? operations : 0.0) * 1e-9;
    CHECK(row["seconds"].get<double>() == doctest::Approx(work + launches * 1e-6));
    micro_batch += row["seconds"].get<double>();
  }
  for (const auto& row : record["per_step"]["kernels"]) once += row["seconds"].get<double>();
  const auto& predicted = record["predicted"];
  CHECK(predicted["peaks"] == "slow");
  CHECK(predicted["micro_batches"] == 3);
  CHECK(predicted["tokens"] == 3 * 4 * 11);
  CHECK(predicted["micro_batch_seconds"].get<double>() == doctest::Approx(micro_batch));
  CHECK(predicted["step_seconds"].get<double>() == doctest::Approx(3 * micro_batch + once));
  const double tokens = 3 * 4 * 11;  // sort has 11 tokens a sample
  CHECK(predicted["tokens_per_second"].get<double>() ==
        doctest::Approx(tokens / (3 * micro_batch + once)));
}

TEST_CASE("plan --peaks of a batch that grows takes micro-batches and tokens of one step") {
  const TemporaryFolder folder;
  const std::string file = folder / "kernels.json";
  const auto tokens_per_second = [&](const std::string& batch) {
    checked(zerograd("plan --data sort --model-type gpt-nano --kernels " + file + " --peaks " +
                     write_peaks(folder / "peaks.json", slow_peaks()) + " --batch-size 4 " +
                     batch));
    return nlohmann::json::parse(read_text(file))["predicted"]["tokens_per_second"].get<double>();
  };
  const double one = tokens_per_second("");
  CHECK(tokens_per_second("--rampup-batch-size 4 4 1000 --train-batch-size 16 --steps 2") ==
        doctest::Approx(one));
}

TEST_CASE("--kernels and --peaks that cannot be met are refused before the run") {
  const TemporaryFolder folder;
  const std::string peaks = write_peaks(folder / "peaks.json", slow_peaks());
  check_refused("plan --data sort --steps 0 --kernels /dev/null", 2,
                "--kernels: the run has no steps left");
  check_refused("plan --data sort --peaks " + peaks, 2, "got --peaks alone; try --kernels F");
  check_refused("plan --data sort --kernels /dev/null --peaks " + (folder / "none.json"), 5,
                "none.json");
  std::ofstream(folder / "bad.json") << R"({"schema":"zerograd.peaks/2"})";
  check_refused("plan --data sort --kernels /dev/null --peaks " + (folder / "bad.json"), 5,
                "bad.json: schema: expected zerograd.peaks/1, got \"zerograd.peaks/2\"");
  const std::string predicted = "plan --data sort --kernels /dev/null --peaks " + peaks;
  check_refused(predicted + " --ranks 2 --pipeline-parallel 2", 2,
                "expected one stage, got --pipeline-parallel 2; try --kernels alone");
  Peaks gpu = slow_peaks();
  gpu.multiprocessors = 132;
  check_refused(
      "plan --data sort --kernels /dev/null --peaks " + write_peaks(folder / "gpu.json", gpu), 2,
      "'slow' has the rates of a GPU; expected those of --device cpu; try another");
  check_refused(predicted + " --device hpu", 2,
                "expected --device cpu or cuda, got hpu; try without --peaks");
  check_refused(predicted + " --offload-optimizer host", 2,
                "expected all states on the device, got an offload to host; try --kernels alone");
  check_refused("info --peaks " + (folder / "p.json"), 2,
                "--peaks: expected --measure beside it, got --peaks alone");
}

TEST_CASE("the files of peaks that come along are read and have every class of kernels") {
  for (const char* name : {"h100-sxm", "h200-sxm", "a100-80gb-sxm"}) {
    CAPTURE(name);
    const Peaks peaks = Peaks::read(std::string(ZG_PEAKS) + name + ".json");
    CHECK(peaks.multiprocessors > 0);
    CHECK(peaks.sources.size() >= 2);
    StepLaunches step;
    for (const KernelClass kind : every_kernel_class)
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
        step.per_micro_batch.rows.push_back({.op = "op",
                                             .kernel = "kernel",
                                             .launches = 1,
                                             .bytes = 1 << 20,
                                             .operations = 1 << 20,
                                             .dtype = dtype,
                                             .kind = kind});
    const StepTime time = predict(step, peaks, {.tokens = 1});
    CHECK(time.by_kind.size() == std::size(every_kernel_class));
    CHECK(time.seconds > 18 * 2e-6);
    CHECK(time.seconds < 18 * 1e-3);
  }
}
