#include <cmath>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/bench.h"

using namespace zg;
using namespace zg::bench;
using namespace zg::testing;

// The times are made up: a kernel of 1 ms whose processes differ by 1 % and samples by 3 %, some of
// which are interrupted.
namespace {

std::vector<Round> rounds_of(int rounds, double slowdown, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  const auto samples_of = [&](double seconds) {
    std::vector<double> samples;
    const double process = seconds * std::exp(0.01 * normal(random));
    for (int i = 0; i < 20; ++i) {
      const double interrupted = uniform(random) < 0.05 ? 2.0 : 1.0;
      samples.push_back(interrupted * process * std::exp(0.03 * normal(random)));
    }
    return samples;
  };
  std::vector<Round> result;
  for (int i = 0; i < rounds; ++i)
    result.push_back({samples_of(1e-3), samples_of(1e-3 * slowdown)});
  return result;
}

Change change_by(double slowdown, std::mt19937_64& random) {
  return change_of(rounds_of(15, slowdown, random), 0.01);
}

}  // namespace

TEST_CASE("a kernel that became 5 % slower or faster is named, in every repeat") {
  std::mt19937_64 random(1);
  for (int repeat = 0; repeat < 20; ++repeat) {
    CAPTURE(repeat);
    const Change slower = change_by(1.05, random), faster = change_by(0.95, random);
    INFO("slower ", slower.ratio, " in ", slower.low, " to ", slower.high, "; faster ",
         faster.ratio, " in ", faster.low, " to ", faster.high);
    CHECK(slower.verdict == Verdict::slower);
    CHECK(faster.verdict == Verdict::faster);
    CHECK(slower.ratio == doctest::Approx(1.05).epsilon(0.02));
    CHECK((slower.low <= slower.ratio && slower.ratio <= slower.high));
  }
}

TEST_CASE("of 400 rows of unchanged kernels at most one is called slower or faster") {
  std::mt19937_64 random(2);
  int alarms = 0;
  for (int row = 0; row < 400; ++row) alarms += change_by(1.0, random).verdict != Verdict::noise;
  CHECK(alarms <= 1);
}

TEST_CASE("a change is the median of its rounds, and one round compares its samples") {
  const Change two = change_of({{{1.0}, {2.0}}, {{1.0}, {4.0}}, {{2.0}, {6.0}}}, 0.02);
  CHECK(two.ratio == 3.0);
  CHECK(two.low == 2.0);
  CHECK(two.high == 4.0);
  CHECK(two.verdict == Verdict::slower);
  CHECK(change_of({{{1.0}, {1.5}}}, 0.5).verdict == Verdict::noise);  // not more than `least`
  CHECK_ERROR(ConfigError, "expected a round or more", change_of({}, 0.02));
  CHECK_ERROR(ConfigError, "a round without samples", change_of({{{1.0}, {}}}, 0.02));
  CHECK_ERROR(ConfigError, "least: expected 0 or more", change_of({{{1.0}, {1.0}}}, 1.0));
}

TEST_CASE("records are compared by the rows that they have in common, each pair as a round") {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const std::vector<std::pair<Work, double>>& rows) {
    Report report(Device::cpu(0, {.threads = 2}), {.limits = Limits{}});
    for (const auto& [work, seconds] : rows) report.add(work, {seconds, 2 * seconds, 2 * seconds});
    write_json(folder / name, {report});
    return folder / name;
  };
  const Work product{.name = "product", .shape = "8x8", .flops = 1.0};
  const Work copy{.name = "copy", .shape = "9", .dtype = DType::bf16, .read = 1.0};
  const std::string before = write("before", {{product, 0.001}, {copy, 0.004}});
  const std::string after = write("after", {{copy, 0.002}}),
                    other = write("other", {{copy, 0.003}});
  const std::vector<ComparedRow> rows = compare({{before, after}, {before, other}}, 0.02);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].name == "copy | 9 | bf16 | 2");
  REQUIRE(rows[0].rounds.size() == 2);
  CHECK(rows[0].rounds[1].after == std::vector<double>{0.003, 0.006, 0.006});
  CHECK(rows[0].change.ratio == 0.75);
  CHECK(table_of_changes(rows).ends_with(
      "\n| copy | 9 | bf16 | 2 | 8.000 | 6.000 | 0.750 | 0.500 - 0.750 | faster |\n"));
  CHECK(not_compared({before, before}).empty());
  CHECK(not_compared({after, before}) == "only in " + before + ": product | 8x8 | f32 | 2\n");
  CHECK(not_compared({before, after}) == "only in " + before + ": product | 8x8 | f32 | 2\n");
  std::ofstream(folder / "arm")
      << R"({"machine": {"isa": "neon"}, "rows": [{"case": "copy", "shape": "9", "dtype": "bf16",)"
         R"("threads": 2, "samples_s": [1.0]}]})";
  CHECK(not_compared({after, folder / "arm"})
            .ends_with(R"( and {"isa":"neon"} null)"
                       "\n"));
  const std::string alone = write("alone", {{product, 0.001}});
  CHECK_ERROR(ConfigError, "have no row in common", compare({{alone, after}}, 0.02));
  std::ofstream(folder / "text") << "{}";
  CHECK_ERROR(FileError, folder / "text" + ": rows: expected",
              compare({{folder / "text", after}}, 0.02));
  std::ofstream(folder / "old") << R"({"rows": [{"case": "copy", "median_s": 1}]})";
  CHECK_ERROR(FileError, "samples_s", compare({{folder / "old", after}}, 0.02));
}
