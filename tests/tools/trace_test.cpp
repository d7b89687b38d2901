#include <filesystem>
#include <set>

#include "tests/support/file_limit.h"
#include "tests/support/small_disk.h"
#include "tests/support/trace_events.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

const std::string traced_run =
    "train --data sort --batch-size 4 --score-samples 0 --log-interval 0 --progress off --threads "
    "1 ";

Outcome train_traced(const std::string& flags) {
  CAPTURE(flags);
  return checked(zerograd(traced_run + flags));
}

/// The steps that a rank's trace has.
std::vector<int64_t> steps_in(const std::vector<TraceEvent>& events, int rank) {
  std::vector<int64_t> steps;
  for (const TraceEvent& event : events)
    if (event.rank == rank && event.name == "step") steps.push_back(event.arguments.at("step"));
  return steps;
}

using Steps = std::vector<int64_t>;

}  // namespace

TEST_CASE("a trace of the command has phases, units, ops and kernels with their operands") {
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json";
  const Outcome outcome = train_traced("--steps 2 --trace " + path);
  CHECK(contains(outcome.error, "trace of steps 0 to 1: " + path));
  const std::vector<TraceEvent> events = trace_events(path);
  CHECK(misnested(events) == "");
  std::set<std::string> names;
  for (const TraceEvent& event : events) {
    names.insert(event.category + " " + event.name);
    CHECK(event.rank == 0);
    if (event.category == "kernel") {
      CAPTURE(event.name);
      CHECK(contains(event.arguments.value("operands", ""), " ["));
    }
    if (event.name == "matmul") CHECK(contains(event.arguments.value("sizes", ""), "M "));
  }
  for (const char* name :
       {"phase step", "phase forward", "phase backward", "phase optimizer", "kernel matmul",
        "kernel optimizer_update", "op attention", "unit block.0", "unit block.2"}) {
    CAPTURE(std::string(name));
    CHECK(names.count(name) == 1);
  }
  const nlohmann::json trace = nlohmann::json::parse(read_file(path));
  size_t counters = 0;
  for (const nlohmann::json& event : trace.at("traceEvents"))
    if (event.at("ph") == "C") counters += event.at("args").at("parameter").get<int64_t>() > 0;
  CHECK(counters > 0);
}

TEST_CASE("a trace has the steps that --trace-steps names, else three after a warm-up") {
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json", save = folder / "save";
  const auto traced = [&](const std::string& flags) {
    std::filesystem::remove(path);
    train_traced(flags + " --trace " + path);
    return steps_in(trace_events(path), 0);
  };
  CHECK(traced("--steps 9") == Steps{2, 3, 4});
  CHECK(traced("--steps 4") == Steps{1, 2, 3});
  CHECK(traced("--steps 1") == Steps{0});
  CHECK(traced("--steps 9 --trace-steps 5:1") == Steps{5});
  CHECK(traced("--steps 9 --trace-steps 7:100 --save " + save) == Steps{7, 8});
  CHECK(traced("--steps 15 --resume " + save) == Steps{11, 12, 13});
  // Steps that a resumed run has behind it are no error: the same line starts it again.
  std::filesystem::remove(path);
  const Outcome behind =
      train_traced("--steps 12 --trace-steps 2:3 --resume " + save + " --trace " + path);
  CHECK(
      contains(behind.error, "trace: " + path + " is not written: none of steps 2 to 4 was taken"));
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK(contains(behind.out, "param_hash "));
}

TEST_CASE("the trace of a run of 40 steps stays below 2 MB") {
  const TemporaryFolder folder;
  train_traced("--steps 40 --model-type gpt-nano --trace " + folder / "trace.json");
  CHECK(std::filesystem::file_size(folder / "trace.json") < 2'000'000);
}

TEST_CASE("the bytes of gathers and reductions in a trace add up to the bytes on the wire") {
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json", metrics = folder / "metrics";
  train_traced(
      "--steps 3 --ranks 2 --zero-stage 3 --cpu-offload --param-persistence-threshold 100 "
      "--precision bf16 --trace-steps 0:3 --metrics " +
      metrics + " --trace " + path);
  const nlohmann::json wire = json_lines(metrics).back().at("wire_bytes");
  const std::vector<TraceEvent> events = trace_events(path);
  CHECK(misnested(events) == "");
  std::set<std::string> units;
  for (const TraceEvent& event : events)
    if (event.category == "unit") units.insert(event.name);
  CHECK(units.count("block.0") == 1);
  units.insert("small parameters");
  for (const std::string op : {"all_gather", "reduce_scatter"}) {
    const std::string what = op == "all_gather" ? " values" : " gradients";
    int64_t bytes = 0;
    std::set<std::string> gathered;
    for (const TraceEvent& event : events) {
      if (event.rank != 0 || event.category != "collective" || !event.name.starts_with(op + " "))
        continue;
      bytes += event.arguments.at("bytes").get<int64_t>();
      REQUIRE(event.name.ends_with(what));
      const std::string unit =
          event.name.substr(op.size() + 1, event.name.size() - op.size() - 1 - what.size());
      CAPTURE(event.name);
      CHECK(units.count(unit) == 1);
      gathered.insert(unit);
    }
    CAPTURE(op);
    CHECK(gathered == units);
    CHECK(bytes == wire.at(op).get<int64_t>());
  }
  CHECK(steps_in(events, 0) == Steps{0, 1, 2});
  CHECK(steps_in(events, 1) == Steps{0, 1, 2});
}

TEST_CASE("a trace that does not fit on the disk is a file error, and the run trains on") {
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json", flags = "--steps 6 --save " + folder / "save";
  const std::string hash = line_after(train_traced("--steps 6").out, "param_hash ");
  write_file(path, "the last run's");
  const auto check = [&](const Outcome& outcome, const std::string& file, const char* reason) {
    CAPTURE(outcome.error);
    CHECK(outcome.status == 5);
    CHECK(line_after(outcome.out, "param_hash ") == hash);
    CHECK(contains(outcome.error, "warning: --trace: " + file + " is not written: write: "));
    CHECK(contains(outcome.error, reason));
    CHECK_FALSE(std::filesystem::exists(file + ".unfinished"));
  };
  {
    const FileLimit limit(100'000);
    check(zerograd(traced_run + "--steps 6 --trace " + path), path, "File too large");
    CHECK(read_file(path) == "the last run's");
  }
  const SmallDisk disk(65536);
  if (!disk.reason().empty()) return;
  check(zerograd(traced_run + "--steps 6 --trace " + (disk / "trace.json")), disk / "trace.json",
        "No space left on device");
  CHECK_FALSE(std::filesystem::exists(disk / "trace.json"));
}

TEST_CASE("a run that fails within the steps to trace still writes a trace of them") {
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json";
  checked(zerograd(traced_run + "--steps 9 --trace-steps 2:5 --trace " + path +
                   " --inject rank=0,step=4,fault=throw,phase=backward"),
          1);
  const std::vector<TraceEvent> events = trace_events(path);
  CHECK(misnested(events) == "");
  CHECK(steps_in(events, 0) == Steps{2, 3, 4});
}

TEST_CASE("wrong --trace-steps are refused by name") {
  const std::pair<const char*, const char*> cases[] = {
      {"--trace-steps 1:2", "--trace-steps: expected --trace F, which they are written to"},
      {"--trace t --trace-steps 5", "--trace-steps: expected FIRST:COUNT such as 10:3, got '5'"},
      {"--trace t --trace-steps 5:0", "--trace-steps: expected"},
      {"--trace t --trace-steps a:1", "--trace-steps: expected"},
      {"--trace t --trace-steps -1:1", "--trace-steps: expected"},
      {"--trace t --trace-steps 3:1",
       "--trace-steps: expected a step below the run's end, 3, got 3"}};
  for (const auto& [flags, message] : cases) {
    check_refused(traced_run + "--steps 3 " + flags, 2, message);
  }
  CHECK_FALSE(std::filesystem::exists("t"));
}

}  // namespace zg::testing
