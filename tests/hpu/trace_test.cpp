#include <doctest/doctest.h>

#include <fstream>
#include <set>

#include "tests/tools/command.h"

using namespace zg::testing;

namespace {

struct Span {
  std::string name;
  double begin, end;  // microseconds
};

/// Of the track of that name.
std::vector<Span> spans_on(const std::string& track, const nlohmann::json& events) {
  std::set<int> ids;
  for (const auto& event : events)
    if (event["ph"] == "M" && event["name"] == "thread_name" && event["args"]["name"] == track)
      ids.insert(event["tid"].get<int>());
  std::vector<Span> spans;
  for (const auto& event : events)
    if (event["ph"] == "X" && ids.count(event["tid"].get<int>()))
      spans.push_back(
          {event["name"], event["ts"], event["ts"].get<double>() + event["dur"].get<double>()});
  return spans;
}

}  // namespace

TEST_CASE("a trace has the device's own time of each kernel, within the op that launched it") {
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json";
  const Outcome run = zerograd(
      "train --data sort --model-type gpt-nano --batch-size 2 --steps 1 --score-samples 0 "
      "--log-interval 0 --progress off --device hpu --trace " +
      path);
  CAPTURE(run.error);
  REQUIRE(run.status == 0);
  const auto events = nlohmann::json::parse(std::ifstream(path)).at("traceEvents");
  const std::vector<Span> ops = spans_on("compute", events), kernels = spans_on("kernels", events);
  REQUIRE(kernels.size() > 50);
  constexpr double rounding = 0.002;  // places and lengths are rounded to nanoseconds
  const auto lies_in = [&](const Span& kernel, const Span& op) {
    return kernel.begin >= op.begin - rounding && kernel.end <= op.end + rounding;
  };
  std::set<std::string> names, ops_with_kernels;
  for (const Span& kernel : kernels) {
    CAPTURE(kernel.name);
    CHECK(kernel.end > kernel.begin);
    // The innermost of the ops around it.
    const Span* within = nullptr;
    for (const Span& op : ops)
      if (lies_in(kernel, op) && (!within || op.end - op.begin < within->end - within->begin))
        within = &op;
    REQUIRE(within);
    names.insert(kernel.name);
    ops_with_kernels.insert(within->name);
  }
  CHECK(names.count("matmul"));
  for (const char* op : {"matmul", "adam", "layer_norm_forward", "attention_backward"})
    CHECK(ops_with_kernels.count(op));
  for (size_t i = 1; i < kernels.size(); ++i)
    CHECK(kernels[i].begin >= kernels[i - 1].end - rounding);
}
