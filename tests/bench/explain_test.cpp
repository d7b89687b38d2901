#include <cmath>
#include <string>
#include <vector>

#include "bench/case.h"
#include "tests/support/error_message.h"
#include "zerograd/bench.h"

using namespace zg;
using namespace zg::bench;
using namespace zg::testing;

// The times are made up: nothing here asserts a time that was measured.
namespace {

/// Nine rounds in which the changed kernel takes `ratio` of the time, give or take `noise`.
Influence influence(Cause cause, bool is_removed, double ratio, double noise = 0.01) {
  Influence result{.cause = cause, .is_removed = is_removed};
  for (int i = 0; i < 9; ++i)
    result.rounds.push_back({{2.0}, {2.0 * ratio * (1.0 + noise * std::sin(i))}});
  return result;
}

}  // namespace

TEST_CASE("causes are ranked by the time above the limit that goes away without them") {
  // Half of the time is above the limit.
  const std::vector<Influence> ranking =
      ranked({influence(Cause::cold_caches, false, 3.0), influence(Cause::misalignment, true, 0.9),
              influence(Cause::small_pages, true, 0.75), influence(Cause::tail, true, 0.9, 0.5)},
             0.5);
  REQUIRE(ranking.size() == 4);
  CHECK(ranking[0].cause == Cause::small_pages);
  CHECK(ranking[0].share == doctest::Approx(0.5).epsilon(0.05));
  CHECK(ranking[1].cause == Cause::misalignment);
  CHECK(ranking[1].share == doctest::Approx(0.2).epsilon(0.1));
  for (const Influence& none : {ranking[2], ranking[3]}) {  // not a cause here, and noise
    CAPTURE(std::string(name_of(none.cause)));
    CHECK(none.share == 0.0);
  }
}

TEST_CASE("each cause alone is named first, and one thread is not named for lines that it shares") {
  for (const Cause planted : {Cause::misalignment, Cause::small_pages, Cause::shared_lines,
                              Cause::tail, Cause::cold_caches, Cause::threads}) {
    CAPTURE(std::string(name_of(planted)));
    std::vector<Influence> all;
    for (const Cause cause : {Cause::threads, Cause::cold_caches, Cause::tail, Cause::shared_lines,
                              Cause::small_pages, Cause::misalignment}) {
      const bool is_seen =
          cause == planted || (planted == Cause::shared_lines && cause == Cause::threads);
      all.push_back(influence(cause, true, is_seen ? 0.6 : 1.0));
    }
    const std::vector<Influence> ranking = ranked(all, 0.5);
    CHECK(ranking[0].cause == planted);
    CHECK(ranking[0].share > 0.7);
    CHECK(ranking[1].share == 0.0);
  }
}

TEST_CASE(
    "explain runs a kernel as it is and with each condition changed, and divides by its work") {
  const Limits limits{.matmul_f32 = 1e9, .memory = 1e9, .update = 1e9, .read = 1e9};
  const ReportOptions options{
      .effort = {.warm_up = 1, .fewest = 1, .samples = 1, .seconds = 0.0, .sample_seconds = 0.0},
      .limits = limits};
  std::vector<Conditions> seen;
  int runs = 0;
  const Trials trials = [&](const Conditions& now) -> std::optional<Trial> {
    seen.push_back(now);
    if (!now.apart) return {};
    return Trial{{.name = "mine", .flops = now.whole ? 512.0 : 1000.0}, [&] { ++runs; }};
  };
  const Explanation explanation = explain({.threads = 2, .whole = false}, trials, options);
  CHECK(std::string(explanation.row.bound.name) == "matmul peak");
  CHECK(explanation.row.bound.seconds == doctest::Approx(1e-6));
  CHECK(explanation.row.seconds.size() == 15);
  REQUIRE(explanation.influences.size() == 5);  // threads cannot share lines here
  for (const Influence& one : explanation.influences) {
    CAPTURE(std::string(name_of(one.cause)));
    CHECK(one.cause != Cause::shared_lines);
    CHECK(one.is_removed == (one.cause == Cause::tail || one.cause == Cause::threads));
    CHECK(one.rounds.size() == 15);
  }
  for (const Conditions& now : seen) {
    const int changed =
        (now.threads != 2) + !now.aligned + !now.huge_pages + !now.apart + now.whole + !now.warm;
    CHECK(changed <= 1);
  }
  CHECK(runs >= 6 * 15);
  CHECK(contains(table_of(explanation), "\n| a tail beside whole vectors | without | "));
  CHECK_ERROR(ConfigError, "expected a trial of the kernel as it is, got none",
              explain(
                  {}, [](const Conditions&) { return std::nullopt; }, options));
}

TEST_CASE("a case of the library is tried off 64 bytes, with small pages and without its tail") {
  const std::vector<Case> cases = cases_of_shape("matmul", {40, 37, 65});
  REQUIRE(cases.size() == 2);
  const Conditions as_is = conditions_of(cases[0], 1, false);
  CHECK(!as_is.whole);
  const Trials trials = trials_of(cases[0]);
  Conditions whole = as_is, shared = as_is;
  whole.whole = true, shared.apart = false;
  const std::optional<Trial> tail = trials(as_is), none = trials(whole);
  REQUIRE((tail && none));
  CHECK(tail->work.shape == "40x37x65");
  CHECK(none->work.shape == "32x32x64");
  CHECK(!trials(shared));
  for (bool Conditions::*condition : {&Conditions::aligned, &Conditions::huge_pages}) {
    Conditions changed = as_is;
    changed.*condition = false;
    const std::optional<Trial> trial = trials(changed);
    REQUIRE(trial);
    trial->run();
    CHECK(trial->work.shape == "40x37x65");
  }
  Operands operands(Device::cpu(), DType::f32);
  operands.offset = 3;
  const Tensor moved = operands.random({5, 7}, 1),
               there = Operands(Device::cpu(), DType::f32).random({5, 7}, 1);
  CHECK(moved.to_host<float>() == there.to_host<float>());
  CHECK(moved.byte_offset() % 64 == 12);
}
