#include "runtime/trace.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "runtime/tensor.h"

using namespace zg;

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
