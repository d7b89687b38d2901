#include "zerograd/runtime/trace.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"
#include "tests/support/file_limit.h"
#include "tests/support/trace_events.h"
#include "zerograd/runtime/tensor.h"

using namespace zg;
using namespace zg::testing;

TEST_CASE("a trace is JSON with a process per rank, nested spans and memory counters") {
  const auto path = std::filesystem::temp_directory_path() / "zerograd_trace_test.json";
  const Device device = Device::cpu(3);
  const auto trace = std::make_shared<Trace>();
  device.set_trace(trace);
  {
    TraceSpan outer(device.compute(), "outer");
    const Tensor held = Tensor::empty({1000}, DType::f32, device);
    TraceSpan inner(device.compute(), "inner");
  }
  device.set_trace(nullptr);
  { TraceSpan ignored(device.compute(), "ignored"); }
  const auto spans = trace->spans();
  REQUIRE(spans.size() == 2);
  CHECK(spans[0].name == "inner");
  CHECK(spans[1].name == "outer");
  CHECK(spans[1].begin_ns <= spans[0].begin_ns);
  trace->write(path.string());

  std::ifstream file(path);
  const auto events = nlohmann::json::parse(file).at("traceEvents");
  double outer_begin = 0, outer_end = 0, inner_begin = 0, inner_end = 0, activation = -1;
  for (const auto& event : events) {
    CHECK(event.at("pid") == 3);
    if (event.at("ph") == "X") {
      const double begin = event.at("ts"), end = begin + event.at("dur").get<double>();
      if (event.at("name") == "outer") outer_begin = begin, outer_end = end;
      if (event.at("name") == "inner") inner_begin = begin, inner_end = end;
      CHECK(event.at("name") != "ignored");
    } else if (event.at("ph") == "C" && activation < 0) {
      activation = event.at("args").at("activation");
    }
  }
  CHECK(activation == static_cast<double>(arena_bytes(4000)));
  CHECK(outer_begin <= inner_begin);
  CHECK(inner_end <= outer_end);
  CHECK(inner_begin > 0);
  std::filesystem::remove(path);
  CHECK_THROWS_AS(trace->write("/no/such/folder/trace.json"), FileError);
}

TEST_CASE("a trace's events have a rank, a track, a category and arguments, whatever their names") {
  const TemporaryFolder folder;
  const Device device = Device::cpu(1);
  const auto trace = std::make_shared<Trace>();
  device.set_trace(trace, 5);
  const std::string odd = "a \"unit\"\\ of\nthree \x01 lines";
  {
    TraceSpan span(device.compute(), {odd, " values"}, Trace::Kind::copy, "copies");
    REQUIRE(span);
    span.add("bytes", int64_t{1} << 40);
    span.add("operands", odd);
  }
  { const TraceSpan span(device.compute(), "gelu", Trace::Kind::kernel); }
  trace->write(folder / "trace.json");
  const std::vector<TraceEvent> events = trace_events(folder / "trace.json");
  REQUIRE(events.size() == 2);
  CHECK(events[0].rank == 5);
  CHECK(events[0].track == "copies");
  CHECK(events[0].category == "copy");
  CHECK(events[0].name == odd + " values");
  CHECK(events[0].arguments.at("bytes") == int64_t{1} << 40);
  CHECK(events[0].arguments.at("operands") == odd);
  CHECK(events[1].track == "compute");
  CHECK(events[1].category == "kernel");
  CHECK(events[1].arguments.empty());
  CHECK(misnested(events) == "");

  trace->clear();
  CHECK(trace->is_empty());
  device.set_trace(nullptr);
  TraceSpan off(device.compute(), {"nothing"}, Trace::Kind::wait);
  CHECK_FALSE(off);
  off.add("bytes", int64_t{1});
  CHECK(trace->is_empty());
}

TEST_CASE("spans of ranks that share a device are written with the rank that recorded them") {
  const TemporaryFolder folder;
  const auto trace = std::make_shared<Trace>();
  const Device shared = Device::cpu(0);
  for (const int rank : {0, 1}) {
    shared.set_trace(trace, rank);
    const TraceSpan span(shared.compute(), "step");
  }
  trace->write(folder / "trace.json");
  const std::vector<TraceEvent> events = trace_events(folder / "trace.json");
  REQUIRE(events.size() == 2);
  CHECK(events[0].rank == 0);
  CHECK(events[1].rank == 1);
}

TEST_CASE("a trace writes a memory counter only when its value changes") {
  const TemporaryFolder folder;
  Trace trace;
  trace.memory(0, 10, {1, 2});
  trace.memory(0, 20, {1, 2});
  trace.memory(1, 20, {1, 2});
  trace.memory(0, 30, {1, 3});
  trace.memory(0, 40, {1, 2});
  trace.write(folder / "trace.json");
  const auto events = nlohmann::json::parse(read_file(folder / "trace.json")).at("traceEvents");
  CHECK(events.size() == 4);
}

TEST_CASE("a trace that cannot be written leaves the old file unchanged and says why") {
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json";
  Trace trace;
  for (int i = 0; i < 20000; ++i) trace.span({.name = "span", .begin_ns = i, .end_ns = i + 1});
  write_file(path, "what was there");
  {
    const FileLimit limit(4096);  // RLIMIT_FSIZE: no file can grow beyond 4096 bytes
    CHECK_ERROR(FileError, "File too large", trace.write(path));
  }
  CHECK(read_file(path) == "what was there");
  CHECK_FALSE(std::filesystem::exists(path + ".unfinished"));
  trace.write(path);
  CHECK(trace_events(path).size() == 20000);
}

TEST_CASE("a trace is written through a link to its target, and into a device file") {
  const TemporaryFolder folder;
  Trace trace;
  trace.span({.name = "span", .begin_ns = 1, .end_ns = 2});
  std::filesystem::create_symlink("target.json", folder / "link.json");
  for (int i = 0; i < 2; ++i) {  // the target is made, then replaced
    trace.write(folder / "link.json");
    CHECK(std::filesystem::is_symlink(folder / "link.json"));
    CHECK(trace_events(folder / "target.json").size() == 1);
  }
  trace.write("/dev/null");
  CHECK(std::filesystem::is_character_file("/dev/null"));
  CHECK_ERROR(FileError, "No space left on device", trace.write("/dev/full"));
}
