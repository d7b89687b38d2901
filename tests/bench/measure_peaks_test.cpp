#include "bench/measure.h"

#include "zerograd/runtime/error.h"

using namespace zg;

namespace {

Peaks plain_peaks() {
  return {.name = "plain",
          .bandwidth = {{{1e3, 4e9}, {1e9, 1e9}}},
          .operations = {{"f32", 1e9}, {"bf16", 2e9}},
          .call_seconds = 1e-6};
}

/// A call that takes 1 / share of the time of its bytes, or of its operations, and the call itself.
bench::TimedCall call_at(const std::string& op, KernelClass kind, DType dtype, double size,
                         double share) {
  const Peaks peaks = plain_peaks();
  const bool multiplies = kind == KernelClass::product;
  const double rate = multiplies ? peaks.operations.at(name_of(dtype)) : peaks.bandwidth.at(size);
  return {.launch = {.op = op,
                     .kernel = op,
                     .launches = 1,
                     .bytes = multiplies ? 1 : static_cast<int64_t>(size),
                     .operations = multiplies ? static_cast<int64_t>(size) : 1,
                     .dtype = dtype,
                     .kind = kind},
          .seconds = size / (rate * share) + peaks.call_seconds};
}

double seconds_of_call(const bench::TimedCall& call, const Peaks& peaks) {
  return predict({.step = 0,
                  .per_micro_batch = {.host_waits = 0, .rows = {call.launch}},
                  .per_step = {}},
                 peaks, {})
      .seconds;
}

}  // namespace

TEST_CASE("fitted shares predict the calls that they were fitted on") {
  const std::vector<bench::TimedCall> calls = {
      call_at("gelu_forward", KernelClass::memory, DType::f32, 1e5, 0.25),
      call_at("gelu_forward", KernelClass::memory, DType::f32, 1e8, 0.75),
      call_at("gelu_forward", KernelClass::memory, DType::bf16, 1e6, 0.125),
      call_at("matmul", KernelClass::product, DType::f32, 1e7, 0.5),
      call_at("matmul", KernelClass::product, DType::bf16, 1e9, 0.9)};
  Peaks peaks = plain_peaks();
  peaks.efficiencies = bench::fit_efficiencies(calls, peaks);
  for (const bench::TimedCall& call : calls) {
    INFO("op ", call.launch.op, ", ", name_of(call.launch.dtype));
    CHECK(seconds_of_call(call, peaks) == doctest::Approx(call.seconds).epsilon(0.01));
  }
  CHECK(Peaks::parse(peaks.json(), "p").efficiencies.size() == peaks.efficiencies.size());
}

TEST_CASE("an op that was not timed takes the median share of its class and dtype") {
  std::vector<bench::TimedCall> calls;
  for (const double share : {0.2, 0.3, 0.8})
    calls.push_back(
        call_at("a" + std::to_string(share), KernelClass::memory, DType::f32, 1e6, share));
  calls.push_back(call_at("b", KernelClass::memory, DType::bf16, 1e6, 0.5));
  Peaks peaks = plain_peaks();
  peaks.efficiencies = bench::fit_efficiencies(calls, peaks);
  for (const auto& [dtype, share] : {std::pair{DType::f32, 0.3}, {DType::bf16, 0.5}}) {
    const bench::TimedCall other = call_at("other", KernelClass::memory, dtype, 1e6, share);
    CHECK(seconds_of_call(other, peaks) == doctest::Approx(other.seconds).epsilon(0.01));
  }
}

TEST_CASE("timed calls of about the same size are one point, their median") {
  std::vector<bench::TimedCall> calls;
  for (const double share : {0.4, 0.5, 0.9})
    calls.push_back(call_at("matmul", KernelClass::product, DType::f32, 1e8 + share, share));
  const Peaks peaks = plain_peaks();
  for (const Efficiency& entry : bench::fit_efficiencies(calls, peaks))
    if (entry.op == "matmul") {
      REQUIRE(entry.operations.points.size() == 1);
      CHECK(entry.operations.points[0].second == doctest::Approx(0.5));
    }
}

TEST_CASE("peaks of another device than a cpu are not measured") {
  CHECK_THROWS_WITH_AS(
      bench::measure_peaks(Device::meta()),
      "peaks: only those of a CPU are measured, got meta; try a file of bench/peaks", Unsupported);
}
