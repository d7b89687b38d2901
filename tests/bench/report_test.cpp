#include <algorithm>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/measure.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/bench.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/tensor.h"

using namespace zg;
using namespace zg::bench;
using namespace zg::testing;
using Json = nlohmann::ordered_json;

// Nothing here asserts a time that was measured: limits and seconds are given.
namespace {

constexpr Limits round_limits{
    .matmul_f32 = 100e9, .matmul_bf16 = 400e9, .memory = 10e9, .update = 20e9, .read = 15e9};
constexpr Effort quick{.limit_rounds = 1,
                       .warm_up = 1,
                       .fewest = 3,
                       .samples = 5,
                       .seconds = 0.0,
                       .sample_seconds = 0.0};

Report report_of(int threads, const Limits& given = round_limits) {
  return Report(Device::cpu(0, {.threads = threads}), {.effort = quick, .limits = given});
}

/// More bytes than any cache holds, so that no row names one.
Work large(const std::string& name) {
  return {.name = name, .shape = "4096x4096", .flops = 2e9, .read = 6e12, .written = 2e12};
}

std::string limit_lines(const char* threads) {
  std::string text;
  for (const auto& [name, flops, bytes] : {std::tuple{"matmul peak | | f32", "100.0", ""},
                                           {"matmul peak | | bf16", "400.0", ""},
                                           {"memory, y += x | | f32", "", "10.0"},
                                           {"memory, y += 1 | | f32", "", "20.0"},
                                           {"read | | f32", "", "15.0"}})
    text += std::string("| limit: ") + name + " | " + threads + " | | | " + flops + " | " + bytes +
            " | | | |\n";
  return text;
}

const std::string head =
    "| case | shape | dtype | threads | median ms | p10 - p90 | GFLOP/s | GB/s | limit | "
    "% of limit | best |\n"
    "|---|---|---|---:|---:|---:|---:|---:|---|---:|---:|\n";

}  // namespace

TEST_CASE("a bench row is compared with the limit that takes the longest time for its work") {
  struct Expected {
    const char* what;
    Work work;
    const char* limit;
    double seconds;
    Limits limits = round_limits;
  };
  Limits no_bf16 = round_limits, slow_update = round_limits;
  no_bf16.matmul_bf16 = 0.0;
  slow_update.update = 0.0;
  const Expected rows[] = {
      {"operations", {.flops = 1e9, .read = 4e6}, "matmul peak", 1e9 / 100e9},
      {"bf16", {.dtype = DType::bf16, .flops = 1e9, .read = 4e6}, "matmul peak", 1e9 / 400e9},
      {"f16", {.dtype = DType::f16, .flops = 1e9, .read = 4e6}, "matmul peak", 1e9 / 100e9},
      {"read and written", {.flops = 1e6, .read = 2e9, .written = 3e9}, "memory", 5e9 / 20e9},
      {"slow update", {.read = 1e9, .written = 3e9}, "memory", 4e9 / 10e9, slow_update},
      {"only read", {.flops = 1e6, .read = 4e9}, "read", 4e9 / 15e9},
      {"mostly read", {.read = 4e9, .written = 1e9}, "read", 4e9 / 15e9},
      {"only written", {.written = 4e9}, "memory", 4e9 / 20e9},
      {"in a cache", {.flops = 1e3, .read = 1 << 19, .written = 1 << 19}, "matmul peak", 1e-8},
      {"above a cache", {.flops = 1e3, .written = (1 << 20) + 4}, "memory", 1048580 / 20e9},
      {"without a peak",
       {.dtype = DType::bf16, .flops = 1e12, .written = 2e6},
       "memory",
       1e-4,
       no_bf16},
      {"in a cache, without a peak",
       {.dtype = DType::bf16, .flops = 1e12, .written = 2e5},
       "memory",
       1e-5,
       no_bf16},
  };
  for (const Expected& expected : rows) {
    CAPTURE(expected.what);
    Report report = report_of(1, expected.limits);
    Work work = expected.work;
    work.name = expected.what;
    const Row row = report.add(work, std::vector<double>{1.0});
    CHECK(std::string(row.bound.name) == expected.limit);
    CHECK(row.bound.seconds == doctest::Approx(expected.seconds).epsilon(1e-12));
    CHECK(*row.percent_of_limit(0.5) == doctest::Approx(100.0 * expected.seconds).epsilon(1e-12));
  }
}

TEST_CASE("quantiles of a row are its nearest samples, and percent_of_limit uses their seconds") {
  Report report = report_of(1);
  // 8e12 bytes at 20 GB/s take 400 s, 6e12 read at 15 GB/s as long: memory comes first.
  const Row row = report.add(large("sorted"), {800.0, 500.0, 1600.0, 1000.0, 640.0});
  CHECK(row.seconds == std::vector<double>{500.0, 640.0, 800.0, 1000.0, 1600.0});
  CHECK(row.quantile(0.0) == 500.0);
  CHECK(row.quantile(0.1) == 500.0);
  CHECK(row.quantile(0.5) == 800.0);
  CHECK(row.quantile(0.9) == 1600.0);
  CHECK(row.percent_of_limit(0.5) == 50.0);
  CHECK(row.percent_of_limit(0.0) == 80.0);
  CHECK(row.percent_of_limit(1.0) == 25.0);
}

TEST_CASE("the bench table lists the limits of every report and then the rows, to the byte") {
  Report one = report_of(1), two = report_of(2);
  one.add(large("first"), {0.8e3, 1.6e3, 1.0e3});
  one.add_unmeasured(large("second"), "has no kernel");
  Limits none = round_limits;
  none.matmul_f32 = 0.0;
  Report bare = report_of(3, none);
  bare.add({.name = "third", .dtype = DType::bf16, .flops = 2e9, .read = 1e6, .written = 1e6},
           {0.01});
  two.add(large("first"),
          {250.0, 320.0, 400.0, 400.0, 400.0, 400.0, 400.0, 400.0, 400.0, 640.0, 800.0});
  const std::string first =
      "| first | 4096x4096 | f32 | 1 | 1000000.000 | 800000.000 - 1600000.000 | 0.0 | 8.0 | memory "
      "| 40 % | 50 % |\n";
  const std::string second = "| second | 4096x4096 | f32 | 1 | has no kernel | | | | | | |\n";
  const std::string on_two =
      "| first | 4096x4096 | f32 | 2 | 400000.000 | 320000.000 - 640000.000 | 0.0 | 20.0 | memory "
      "| 100 % | 160 % |\n";
  const std::string third =
      "| third |  | bf16 | 3 | 10.000 | 10.000 - 10.000 | 200.0 | 0.2 | matmul peak | 50 % | 50 % "
      "|\n";
  CHECK(table({one}) == head + limit_lines("1") + first + second);
  CHECK(table({one, two}) == head + limit_lines("1") + limit_lines("2") + first + second + on_two);
  std::string fewer = limit_lines("3");
  fewer.erase(0, fewer.find('\n') + 1);
  CHECK(table({bare}) == head + fewer + third);
}

TEST_CASE("a row faster than a memory limit names the cache that holds its operands") {
  Report report = report_of(2);
  // Memory takes 1e-4 s; 1.05 times as fast is noise, and what computes is bounded by no memory.
  const Work work{.name = "copy", .shape = "", .read = 1e6, .written = 1e6};
  const auto cell = [&](const Work& what, double seconds) {
    const std::string line = line_of(report.add(what, {seconds}));
    const size_t begin = line.find("memory | ") + 9;
    return line.substr(begin, line.find(" |", begin) - begin);
  };
  const std::string cache = cache_of(2e6, 2);
  CHECK(cell(work, 1e-4 / 1.04) == "104 %");
  CHECK(note_of({report}).empty());
  CHECK(cell(work, 1e-4 / 3) == (cache.empty() ? "300 %" : "300 % (" + cache + ")"));
  CHECK(note_of({report}).empty() == cache.empty());
  CHECK(table({report}).ends_with(note_of({report})));
  Report computed = report_of(2);
  const Row above = computed.add({.name = "fast", .flops = 1e9, .read = 2e6}, {1e-3});
  CHECK(std::string(above.bound.name) == "matmul peak");
  CHECK(above.percent_of_limit(0.5) == 1000.0);
  CHECK(above.cache().empty());
}

TEST_CASE("the JSON has the machine, the limits of each report, and the rows with figures") {
  Report one = report_of(1), two = report_of(2);
  one.add(large("first"), {0.8e3, 1.6e3, 1.0e3});
  one.add_unmeasured(large("second"), "has no kernel");
  two.add({.name = "third", .shape = "5", .dtype = DType::bf16, .flops = 1.0, .read = 2e6}, {1e9});
  const Json expected = {{"schema", 1},
                         {"bench", "kernels"},
                         {"machine", {{"isa", name_of(best_isa())}, {"cores", available_cores()}}},
                         {"limits",
                          {{{"threads", 1},
                            {"matmul_f32", 100e9},
                            {"matmul_bf16", 400e9},
                            {"memory", 10e9},
                            {"update", 20e9},
                            {"read", 15e9}},
                           {{"threads", 2},
                            {"matmul_f32", 100e9},
                            {"matmul_bf16", 400e9},
                            {"memory", 10e9},
                            {"update", 20e9},
                            {"read", 15e9}}}},
                         {"rows",
                          {{{"case", "first"},
                            {"shape", "4096x4096"},
                            {"dtype", "f32"},
                            {"threads", 1},
                            {"samples", 3},
                            {"median_s", 1e3},
                            {"p10_s", 0.8e3},
                            {"p90_s", 1.6e3},
                            {"p99_s", 1.6e3},
                            {"best_s", 0.8e3},
                            {"samples_s", {0.8e3, 1.0e3, 1.6e3}},
                            {"others", 0.0},
                            {"flops", 2e9},
                            {"bytes", 8e12},
                            {"flops_per_byte", 2e9 / 8e12},
                            {"flops_per_s", 2e6},
                            {"bytes_per_s", 8e9},
                            {"limit", "memory"},
                            {"limit_s", 400.0},
                            {"percent_of_limit", 40.0},
                            {"cache", nullptr}},
                           {{"case", "third"},
                            {"shape", "5"},
                            {"dtype", "bf16"},
                            {"threads", 2},
                            {"samples", 1},
                            {"median_s", 1e9},
                            {"p10_s", 1e9},
                            {"p90_s", 1e9},
                            {"p99_s", 1e9},
                            {"best_s", 1e9},
                            {"samples_s", Json::array({1e9})},
                            {"others", 0.0},
                            {"flops", 1.0},
                            {"bytes", 2e6},
                            {"flops_per_byte", 1.0 / 2e6},
                            {"flops_per_s", 1e-9},
                            {"bytes_per_s", 2e-3},
                            {"limit", "read"},
                            {"limit_s", 2e6 / 15e9},
                            {"percent_of_limit", 100.0 * (2e6 / 15e9) / 1e9},
                            {"cache", nullptr}}}}};
  const TemporaryFolder folder;
  write_json(folder / "two.json", {one, two});
  for (const std::string& text : {json({one, two}), read_file(folder / "two.json")}) {
    Json record = Json::parse(text);
    const Json measured = record["measured"];
    CHECK(measured["date"].get<std::string>().size() == std::size("2026-11-29T20:00:00Z") - 1);
    CHECK(measured["version"] == version());
    CHECK(measured["processor"] == processor_name());
    for (const char* key : {"commit", "compiler", "governor", "load"})
      CHECK(measured.contains(key));
    record.erase("measured");
    CHECK(record.dump(1) == expected.dump(1));
  }
  CHECK_ERROR(FileError, "/nowhere/two.json", write_json("/nowhere/two.json", {one}));
}

TEST_CASE("the CSV has a line for each row of the JSON, with the machine and all samples") {
  Report report = report_of(2);
  report.add({.name = R"(a "quoted", name)", .shape = "8", .flops = 1e9, .read = 8.0}, {0.5, 0.25});
  report.add_unmeasured(large("second"), "has no kernel");
  const TemporaryFolder folder;
  write_csv(folder / "rows.csv", {report});
  const std::string text = read_file(folder / "rows.csv");
  CHECK(text.starts_with("case,shape,dtype,threads,samples,median_s,"));
  CHECK(contains(text,
                 ",cores\n\"a \"\"quoted\"\", name\",8,f32,2,2,0.5,0.25,0.5,0.5,0.25,0.25 0.5,"));
  CHECK(text.ends_with(",avx2," + std::to_string(available_cores()) + "\n") ==
        (best_isa() == Isa::avx2));
  CHECK(std::ranges::count(text, '\n') == 2);
  CHECK_ERROR(FileError, "/nowhere/rows.csv", write_csv("/nowhere/rows.csv", {report}));
}

TEST_CASE("cold samples are single runs after other memory displaced the operands") {
  int runs = 0, before = 0;
  Effort cold{.warm_up = 2, .fewest = 3, .samples = 3, .seconds = 10.0, .sample_seconds = 0.02};
  const auto run = [&] {
    ++runs;
    CHECK(before == runs);
  };
  CHECK(measure(
            run, cold, [] {}, {}, [&] { ++before; })
            .size() == 3);
  CHECK(runs == 2 + 3);
  cold.cold = true;
  runs = 0;
  Report report(Device::cpu(0, {.threads = 2}), {.effort = cold, .limits = round_limits});
  const Row row = report.add({.name = "copy", .flops = 1e3, .read = 2e4}, [&] { ++runs; });
  CHECK(runs == 2 + 3);
  CHECK(row.work.name == "copy, cold");
  CHECK(std::string(row.bound.name) == "read");  // not the peak of operands in a core's cache
}

TEST_CASE("a row beside busy programs, or without measured limits, has no percentage") {
  Row row = report_of(2).add(large("sorted"), {800.0});
  CHECK(row.percent_of_limit(0.5) == 50.0);
  row.others = 0.4;
  CHECK(!row.percent_of_limit(0.5));
  CHECK(contains(line_of(row), " | memory | others: 40 % |  |"));
  Report report = report_of(1, Limits{});
  row = report.add(large("sorted"), {800.0});
  CHECK(!row.percent_of_limit(0.5));
  CHECK(table({report}) == head +
                               "| sorted | 4096x4096 | f32 | 1 | 800000.000 | 800000.000 - "
                               "800000.000 | 0.0 | 10.0 |  |  |  |\n");
}

TEST_CASE("measure takes Effort::fewest samples when time is short and at most Effort::samples") {
  int runs = 0, waits = 0;
  const auto run = [&] { ++runs; };
  const auto finish = [&] { ++waits; };
  // No time at all: the first run, which tells how long one takes, and the fewest samples.
  CHECK(measure(run, quick, finish).size() == 3);
  CHECK(runs == 1 + 3);
  CHECK(waits == 1 + 3);
  // All the time: warm-up runs, and the most samples.
  runs = waits = 0;
  Effort longest = quick;
  longest.seconds = 10.0;
  longest.warm_up = 10;
  CHECK(measure(run, longest, finish).size() == 5);
  CHECK(runs == 10 + 5);
  CHECK(waits == 10 + 5);
  // Fewer samples than the fewest.
  longest.samples = 2;
  CHECK(measure(run, longest).size() == 2);
  // Samples of many runs each: one wait for a sample, and its seconds are those of one run.
  runs = waits = 0;
  const Effort repeated{
      .warm_up = 50, .fewest = 3, .samples = 3, .seconds = 10.0, .sample_seconds = 0.02};
  int between = 0;
  const std::vector<double> seconds = measure(run, repeated, finish, [&] { ++between; });
  CHECK(between == 3 + 1);  // before each of the three samples, and after the last
  CHECK(seconds.size() == 3);
  CHECK(waits == 50 + 3);
  CHECK(runs > 50 + 3 * 100);  // an empty run takes far less than 0.2 ms
  CHECK((runs - 50) % 3 == 0);
  CHECK(std::ranges::is_sorted(seconds));
  CHECK(seconds.front() < 0.02 / 100);
}

TEST_CASE(
    "Report::add runs the function and keeps its row, and keeps no row if the function throws") {
  Report report = report_of(1);
  int runs = 0;
  const Row row = report.add(large("counted"), [&] { ++runs; });
  CHECK(runs >= quick.fewest);
  CHECK(row.seconds.size() == static_cast<size_t>(quick.fewest));
  CHECK(row.seconds.front() > 0.0);
  CHECK(row.threads == 1);
  REQUIRE(report.rows().size() == 1);
  CHECK(report.rows()[0].seconds == row.seconds);
  CHECK_THROWS_AS(report.add(large("fails"), [] { throw std::runtime_error("mine"); }),
                  std::runtime_error);
  CHECK(report.rows().size() == 1);
}

TEST_CASE("a report times a user's kernel in a kernel slot as it does the built-in one") {
  static int calls = 0;
  calls = 0;
  Report report = report_of(1);
  const Device& device = report.device();
  const Unary call{.op = UnaryOp::relu,
                   .x = Tensor::full({64}, -1.0, DType::f32, device),
                   .y = Tensor::full({64}, 7.0, DType::f32, device)};
  const auto run = [&] { kernels::unary(call, device.compute()); };
  const Work work{.name = "relu", .shape = "64", .flops = 64, .read = 256, .written = 256};
  report.add(work, run);
  CHECK(calls == 0);
  CHECK(call.y.to_doubles()[63] == 0.0);
  const auto built_in = std::exchange(kernels::unary[Device::Type::cpu].function,
                                      [](const Unary& args, Workspace, Stream&) {
                                        ++calls;
                                        args.y.data<float>()[63] = 5.0f;
                                      });
  report.add(work, run);
  kernels::unary[Device::Type::cpu].function = built_in;
  CHECK(calls >= quick.fewest);
  CHECK(call.y.to_doubles()[63] == 5.0);
  CHECK(report.rows().size() == 2);
}

TEST_CASE("limits are measured on a separate device and take no memory of the report's device") {
  const Device device = Device::cpu(0, {.threads = 2, .memory_limit = 1 << 20});
  Report report(device, {.effort = quick});
  for (const double limit : {report.limits().matmul_f32, report.limits().matmul_bf16,
                             report.limits().memory, report.limits().update, report.limits().read})
    CHECK(limit > 1e8);  // no machine is slower
  // The limits of rows are measured again, between the samples. One such time may be equal to the
  // nanosecond to that of the report.
  bool has_own_peak = false, has_own_rate = false;
  for (int i = 0; i < 5; ++i) {
    const Row product = report.add({.name = "product", .flops = 1e9}, [] {});
    CHECK(std::string(product.bound.name) == "matmul peak");
    has_own_peak |= product.bound.seconds != 1e9 / report.limits().matmul_f32;
    const Row memory = report.add({.name = "copy", .read = 4e6, .written = 4e6}, [] {});
    CHECK(std::string(memory.bound.name) != "matmul peak");
    CHECK(memory.bound.seconds > 0.0);
    has_own_rate |=
        memory.bound.seconds != 8e6 / std::max(report.limits().memory, report.limits().update);
  }
  CHECK(has_own_peak);
  CHECK(has_own_rate);
  CHECK(device.memory().peak() == 0);
  CHECK(report.device() == device);
}

TEST_CASE(
    "a report refuses a meta device and invalid efforts, limits, work and samples without a run") {
  const double infinity = std::numeric_limits<double>::infinity();
  const Device device = Device::cpu();
  CHECK(
      contains(message_of<Unsupported>([] { Report r(Device::meta(), {.limits = round_limits}); }),
               "bench: meta:0 computes nothing; expected a cpu, cuda or hpu device"));
  const auto effort = [&](const Effort& e) {
    return message_of<ConfigError>(
        [&] { Report r(device, {.effort = e, .limits = round_limits}); });
  };
  CHECK(contains(effort({.limit_rounds = 0}), "effort.limit_rounds: expected 1 or more, got 0"));
  CHECK(contains(effort({.warm_up = -1}), "effort.warm_up: expected 0 or more, got -1"));
  CHECK(contains(effort({.fewest = 0}), "effort.fewest: expected 1 or more, got 0"));
  CHECK(contains(effort({.samples = 0}), "effort.samples: expected 1 or more, got 0"));
  CHECK(contains(effort({.seconds = -1.0}), "effort.seconds: expected 0 or more, got -1"));
  CHECK(contains(effort({.sample_seconds = infinity}), "effort.sample_seconds: expected 0 or"));
  const auto limit = [&](const Limits& l) {
    return message_of<ConfigError>([&] { report_of(1, l); });
  };
  CHECK(
      contains(limit({.read = 1.0}), "limits.memory: expected bytes in a second, above 0, got 0"));
  CHECK(
      contains(limit({.memory = 1.0}), "limits.read: expected bytes in a second, above 0, got 0"));
  CHECK(contains(limit({.matmul_f32 = -1.0, .memory = 1.0, .read = 1.0}), "limits.matmul_f32"));
  CHECK(contains(limit({.matmul_bf16 = infinity, .memory = 1.0, .read = 1.0}), "matmul_bf16"));
  CHECK(contains(limit({.memory = 1.0, .update = -1.0, .read = 1.0}), "limits.update: expected 0"));

  Report report = report_of(1);
  int runs = 0;
  const auto work = [&](const Work& w) {
    return message_of<ConfigError>([&] { report.add(w, [&] { ++runs; }); });
  };
  CHECK(contains(work({.flops = 1.0}), "work.name: expected a name, got none"));
  CHECK(contains(work({.name = "a|b", .flops = 1.0}), "one line without '|', got 'a|b'"));
  CHECK(contains(work({.name = "a", .shape = "1\n2", .flops = 1.0}), "work.shape: expected one"));
  CHECK(contains(work({.name = "a", .flops = -1.0}), "a: flops: expected 0 or more, got -1"));
  CHECK(
      contains(work({.name = "a", .read = infinity}), "a: bytes read: expected 0 or more, got i"));
  CHECK(contains(work({.name = "a", .written = -2.0}), "a: bytes written: expected 0 or more"));
  CHECK(contains(work({.name = "a"}), "a: flops, read and written are all 0; expected the work"));
  CHECK(runs == 0);
  const Work good = large("good");
  CHECK_ERROR(ConfigError, "good: expected a function to run, got none",
              report.add(good, std::function<void()>()));
  CHECK_ERROR(ConfigError, "good: expected seconds, got none",
              report.add(good, std::vector<double>()));
  CHECK_ERROR(ConfigError, "good: seconds: expected more than 0, got 0",
              report.add(good, {1.0, 0.0}));
  CHECK_ERROR(ConfigError, "good: expected a reason, got none", report.add_unmeasured(good, ""));
  CHECK_ERROR(ConfigError, "why: expected one line without '|'",
              report.add_unmeasured(good, "a|b"));
  CHECK(report.rows().empty());
  CHECK(contains(message_of<ConfigError>([] { table({}); }), "table: expected a report or more"));
  CHECK(contains(message_of<ConfigError>([] { json({}); }), "json: expected a report or more"));
}
