#include "tools/plan_mesh.h"

#include <algorithm>

#include "tools/planner.h"
#include "zerograd/models/gpt_part.h"
#include "zerograd/runtime/text.h"

namespace zg::tools {
namespace {

std::string mib(int64_t bytes) { return text("%.1f", static_cast<double>(bytes) / (1 << 20)); }

int64_t received(const WireCounts& wire) {
  int64_t bytes = 0;
  for (const WireCount& count : wire) bytes += count.bytes;
  return bytes;
}

std::string line_of(const Run& run, const RankMemory& rank) {
  const ModelPlace& place = rank.place;
  std::string line =
      text("| %d | %d | %lld - %lld | %.3f |", place.stage, rank.rank, (long long)place.first_layer,
           (long long)place.end_layer - 1, static_cast<double>(place.parameters) * 1e-9);
  const MemoryRow& peak = peak_of(rank);
  for (int purpose = 0; purpose < purpose_count; ++purpose)
    line += " " + mib(peak.at_max[static_cast<size_t>(purpose)]) + " |";
  line += " " + mib(peak.reserved) + " |";
  const auto steps = std::max<int64_t>(1, run.steps - run.steps_done);
  for (const AxisWire& axis : rank.axes) line += " " + mib(received(axis.wire) / steps) + " |";
  return line;
}

// The largest cost of a stage divided by the mean cost; 1: all stages are equal.
double imbalance(const models::GPTConfig& model, const std::vector<RankMemory>& stages) {
  double most = 0.0, all = 0.0;
  for (const RankMemory& stage : stages) {
    double cost = static_cast<double>(stage.place.end_layer - stage.place.first_layer) *
                  models::layer_flops(model);
    if (&stage == &stages.back()) cost += models::head_flops(model);
    most = std::max(most, cost);
    all += cost;
  }
  return most * static_cast<double>(stages.size()) / all;
}

}  // namespace

std::string mesh_summary(const Run& run, const std::vector<RankMemory>& stages) {
  const Settings& settings = run.settings;
  const Axes& axes = settings.axes;
  std::string summary =
      text(
          "mesh: data %lld x pipeline %lld x tensor %lld\n\nMiB of a rank of each stage at its "
          "peak, and received a step by axis:\n\n",
          (long long)settings.ranks, (long long)axes.pipeline, (long long)axes.tensor) +
      "| stage | rank | layers | parameters (B) |";
  std::string rule = "\n|---:|---:|---:|---:|";
  const auto column = [&](const std::string& title) {
    summary += " " + title + " |";
    rule += "---:|";
  };
  for (int purpose = 0; purpose < purpose_count; ++purpose)
    column(zg::name_of(static_cast<Purpose>(purpose)));
  column("reserved");
  for (const AxisWire& axis : stages.front().axes) column(text("%s wire", axis.axis));
  summary += rule;
  for (const RankMemory& rank : stages) summary += "\n" + line_of(run, rank);
  const double bubble = pipeline_bubble(static_cast<int>(axes.pipeline), settings.accumulation);
  summary += text(
      "\n\nbubble %.1f %%: (p - 1) / (m + p - 1) of %lld stages and %lld "
      "micro-batches; the dearest stage costs %.1f %% more than the mean",
      100.0 * bubble, (long long)axes.pipeline, (long long)settings.accumulation,
      100.0 * (imbalance(settings.model, stages) - 1.0));
  if (settings.optimisation.engine.stage > 1)
    summary += text("\nZeRO stage %d in a pipeline: %s; stages 0 and 1 send less",
                    settings.optimisation.engine.stage,
                    settings.optimisation.engine.stage == 3
                        ? "every micro-batch gathers its stage's values, forward and backward"
                        : "sums are shared out at every stage here, so it saves nothing over 1");
  return summary;
}

}  // namespace zg::tools
