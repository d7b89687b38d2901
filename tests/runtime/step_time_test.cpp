#include "zerograd/runtime/step_time.h"

#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"

using namespace zg;

namespace {

/// 1 GB/s and 1 GFLOP/s, 1 ms a launch; products of bf16 reach half of twice the rate.
Peaks round_peaks() {
  return {
      .name = "round",
      .bandwidth = {{{1.0, 1e9}}},
      .operations = {{"f32", 1e9}, {"bf16", 2e9}},
      .launch_seconds = 1e-3,
      .wait_seconds = 1e-2,
      .collective_seconds = 1e-3,
      .collective_bandwidth = 1e9,
      .efficiencies = {
          {.bandwidth = {{{1.0, 1.0}}}, .source = "every row"},
          {.kind = "product", .operations = {{{1.0, 1.0}}}, .source = "f32"},
          {.kind = "product", .dtype = "bf16", .operations = {{{1.0, 0.5}}}, .source = "bf16"}}};
}

LaunchRow product_row(DType dtype, int64_t launches, int64_t bytes, int64_t operations) {
  return {.op = "matmul",
          .kernel = "k",
          .launches = launches,
          .bytes = bytes,
          .operations = operations,
          .dtype = dtype,
          .kind = KernelClass::product};
}

StepLaunches one_row_step(const LaunchRow& row) {
  return {.step = 1, .per_micro_batch = {.host_waits = 0, .rows = {row}}, .per_step = {}};
}

std::string refusal_of_peaks(const std::string& text) {
  return zg::testing::message_of<FileError>([&] { Peaks::parse(text, "p.json"); });
}

}  // namespace

TEST_CASE("a kernel takes the longest of its bytes, its operations and its launches") {
  const Peaks peaks = round_peaks();
  const auto time = [&](const LaunchRow& row) { return predict(one_row_step(row), peaks, {}); };
  const StepTime by_bytes = time(product_row(DType::f32, 2, 40'000'000, 2));
  CHECK(by_bytes.seconds == doctest::Approx(0.040));
  CHECK(std::string(by_bytes.per_micro_batch[0].bound) == "bandwidth");
  const StepTime by_operations = time(product_row(DType::f32, 2, 8, 60'000'000));
  CHECK(by_operations.seconds == doctest::Approx(0.060));
  CHECK(std::string(by_operations.per_micro_batch[0].bound) == "operations");
  // Half of 2e9.
  CHECK(time(product_row(DType::bf16, 2, 8, 60'000'000)).seconds == doctest::Approx(0.060));
  const StepTime by_launches = time(product_row(DType::f32, 7, 8, 8));
  CHECK(by_launches.seconds == doctest::Approx(0.007));
  CHECK(std::string(by_launches.per_micro_batch[0].bound) == "launch");
}

TEST_CASE("a step is its micro-batches, what it does once, its waits and its collectives") {
  StepLaunches step = one_row_step(product_row(DType::f32, 1, 20'000'000, 1));
  step.per_micro_batch.host_waits = 1;
  step.per_step = {.host_waits = 2,
                   .rows = {{.op = "u",
                             .kernel = "u",
                             .launches = 1,
                             .bytes = 5'000'000,
                             .kind = KernelClass::optimizer}}};
  const StepTime time =
      predict(step, round_peaks(),
              {.micro_batches = 3, .tokens = 130, .collectives = 4, .received_bytes = 11'000'000});
  CHECK(time.micro_batch_seconds == doctest::Approx(0.030));
  CHECK(time.once_seconds == doctest::Approx(0.025));
  CHECK(time.collective_seconds == doctest::Approx(0.015));
  CHECK(time.seconds == doctest::Approx(0.130));
  CHECK(time.tokens_per_second == doctest::Approx(1000.0));
  CHECK(time.by_kind.at(KernelClass::product) == doctest::Approx(0.060));
  CHECK(time.by_kind.at(KernelClass::optimizer) == doctest::Approx(0.005));
  const auto record = nlohmann::json::parse(to_json(step, time));
  CHECK(record["schema"] == "zerograd.launches/1");
  CHECK(record["per_micro_batch"]["kernels"][0]["seconds"].get<double>() == doctest::Approx(0.020));
  CHECK(record["per_micro_batch"]["kernels"][0]["bound"] == "bandwidth");
  CHECK(record["predicted"]["step_seconds"].get<double>() == doctest::Approx(0.130));
  CHECK(record["predicted"]["class_seconds"]["optimizer"].get<double>() == doctest::Approx(0.005));
}

TEST_CASE("a curve is linear in the logarithm of the size and flat outside of its points") {
  const Curve curve{{{10.0, 1.0}, {1000.0, 3.0}}};
  CHECK(curve.at(1.0) == 1.0);
  CHECK(curve.at(10.0) == 1.0);
  CHECK(curve.at(100.0) == doctest::Approx(2.0));
  CHECK(curve.at(1000.0) == 3.0);
  CHECK(curve.at(1e9) == 3.0);
}

TEST_CASE("peaks that lack a rate which a step needs are refused by name") {
  Peaks peaks = round_peaks();
  peaks.efficiencies.pop_back();
  peaks.operations.erase("bf16");
  CHECK_THROWS_WITH_AS(
      predict(one_row_step(product_row(DType::bf16, 1, 8, 8)), peaks, {}),
      "peaks: 'round' has no operations per second for matmul (k, bf16, class product); expected "
      "one; try a file of bench/peaks, or add the value with its source",
      ConfigError);
  peaks.efficiencies.pop_back();
  CHECK_THROWS_WITH_AS(
      predict(one_row_step(product_row(DType::f32, 1, 8, 8)), peaks, {}),
      "peaks: 'round' has no share of the operations for matmul (k, f32, class product); expected "
      "one; try a file of bench/peaks, or add the value with its source",
      ConfigError);
  peaks = round_peaks();
  peaks.collective_bandwidth = 0.0;
  CHECK_THROWS_AS(predict({}, peaks, {.collectives = 1, .received_bytes = 8}), ConfigError);
}

TEST_CASE("a file of peaks that is written is read as it was") {
  const Peaks peaks = round_peaks();
  const std::string text = peaks.json();
  CHECK(Peaks::parse(text, "p.json").json() == text);
  Peaks curved = peaks;
  curved.bandwidth = {{{1e3, 1e10}, {1e6, 2e9}}};
  curved.sources = {{.title = "a data sheet", .url = "https://example.org"}};
  curved.multiprocessors = 132;
  CHECK(Peaks::parse(curved.json(), "p.json").bandwidth == curved.bandwidth);
  CHECK(Peaks::parse(curved.json(), "p.json").json() == curved.json());
}

TEST_CASE("a bad file of peaks is refused with its key, what is expected and what it has") {
  const std::string start =
      R"({"schema":"zerograd.peaks/1","name":"x","bandwidth":1e9,"operations":{"f32":1e9})";
  const auto refused = [&](const std::string& rest, const std::string& message) {
    CHECK(refusal_of_peaks(start + rest + "}") ==
          "p.json: " + message + "; see bench/peaks/README.md");
  };
  CHECK_NOTHROW(Peaks::parse(start + "}", "p.json"));
  for (const std::string& text : {std::string("["), std::string("3"), std::string(100000, '[')})
    CHECK(testing::contains(refusal_of_peaks(text), "; see bench/peaks/README.md"));
  CHECK(refusal_of_peaks("{}") ==
        "p.json: schema: expected zerograd.peaks/1, got null; see bench/peaks/README.md");
  refused(R"(,"wait_seconds":-1)", "wait_seconds: expected a number from 0 to 1e+30, got -1");
  refused(R"(,"collective_bandwidth":"fast")",
          "collective_bandwidth: expected a number from 0 to 1e+30, got \"fast\"");
  refused(R"(,"efficiencies":[{"operations":"fast","source":"s"}])",
          "efficiencies[0].operations: expected a number, or a list of [size, value], got "
          "\"fast\"");
  refused(R"(,"efficiencies":[{"operations":1e-300,"source":"s"}])",
          "efficiencies[0].operations: expected a number from 1e-12 to 100, got 1e-300");
  refused(R"(,"efficiencies":[{"class":"produkt","operations":0.5,"source":"s"}])",
          "efficiencies[0].class: expected memory, product, attention_forward, attention_backward, "
          "optimizer, copy, got \"produkt\"");
  refused(R"(,"efficiencies":[{"class":"product","source":"s"}])",
          "efficiencies[0]: expected bandwidth, operations or both, got "
          R"({"class":"product","source":"s"})");
  refused(R"(,"efficiencies":[{"operations":0.5}])",
          "efficiencies[0].source: expected a string, got null");
  refused(R"(,"efficiencies":[{"operations":[[2,0.5],[1,0.5]],"source":"s"}])",
          "efficiencies[0].operations[1][0]: expected a size above the one before, got 1");
  refused(R"(,"efficiencies":[{"operations":0,"source":"s"}])",
          "efficiencies[0].operations: expected a number from 1e-12 to 100, got 0");
}
