#include <doctest/doctest.h>

#include <set>

#include "tests/support/trace_events.h"
#include "tests/tools/command.h"

using namespace zg::testing;

namespace {

std::vector<TraceEvent> on_track(const std::vector<TraceEvent>& events, const std::string& track) {
  std::vector<TraceEvent> own;
  for (const TraceEvent& event : events)
    if (event.track == track) own.push_back(event);
  return own;
}

}  // namespace

TEST_CASE(
    "a trace has the time of each kernel by the device's clock, within the op that launched it") {
  const TemporaryFolder folder;
  const std::string path = folder / "trace.json";
  checked(
      zerograd("train --data sort --model-type gpt-nano --batch-size 2 --steps 1 --score-samples 0 "
               "--log-interval 0 --progress off --device hpu --trace " +
               path));
  const std::vector<TraceEvent> events = trace_events(path);
  CHECK(misnested(events) == "");
  const std::vector<TraceEvent> ops = on_track(events, "compute"),
                                kernels = on_track(events, "kernels");
  REQUIRE(kernels.size() > 50);
  constexpr double rounding = 0.002;  // places and lengths are rounded to nanoseconds
  const auto lies_in = [&](const TraceEvent& kernel, const TraceEvent& op) {
    return kernel.begin >= op.begin - rounding && kernel.end <= op.end + rounding;
  };
  std::set<std::string> names, ops_with_kernels;
  for (const TraceEvent& kernel : kernels) {
    CAPTURE(kernel.name);
    CHECK(kernel.end > kernel.begin);
    // The innermost of the ops around it.
    const TraceEvent* within = nullptr;
    for (const TraceEvent& op : ops)
      if (lies_in(kernel, op) && (!within || op.end - op.begin < within->end - within->begin))
        within = &op;
    REQUIRE(within);
    names.insert(kernel.name);
    ops_with_kernels.insert(within->name);
  }
  CHECK(names.count("matmul"));
  for (const char* op : {"matmul", "optimizer_update", "layer_norm_forward", "attention_backward"})
    CHECK(ops_with_kernels.count(op));
  for (size_t i = 1; i < kernels.size(); ++i)
    CHECK(kernels[i].begin >= kernels[i - 1].end - rounding);
}
