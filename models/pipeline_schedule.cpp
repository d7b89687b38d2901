#include "models/pipeline_schedule.h"

#include <algorithm>
#include <limits>
#include <string>

#include "runtime/error.h"

namespace zg::models {

using Kind = PipelineAction::Kind;

std::vector<PipelineAction> actions(PipelineSchedule schedule, int stages, int stage,
                                    int64_t micro_batches) {
  const int64_t ahead = most_in_flight(schedule, stages, stage, micro_batches);
  std::vector<PipelineAction> order;
  order.reserve(static_cast<size_t>(2 * micro_batches));
  int64_t forwards = 0;
  while (forwards < ahead) order.push_back({Kind::forward, forwards++});
  for (int64_t done = 0; done < micro_batches; ++done) {
    order.push_back({Kind::backward, done});
    if (forwards < micro_batches) order.push_back({Kind::forward, forwards++});
  }
  return order;
}

int64_t most_in_flight(PipelineSchedule schedule, int stages, int stage, int64_t micro_batches) {
  if (schedule == PipelineSchedule::gpipe) return micro_batches;
  return std::min<int64_t>(micro_batches, stages - stage);
}

double pipeline_bubble(int stages, int64_t micro_batches) {
  return static_cast<double>(stages - 1) / static_cast<double>(micro_batches + stages - 1);
}

std::vector<int64_t> balanced_stages(std::span<const double> costs, double first, double last,
                                     int stages) {
  const auto layers = static_cast<int64_t>(costs.size());
  if (stages < 1 || layers < stages)
    throw ConfigError("pipeline: expected 1 to " + std::to_string(layers) +
                      " stages for as many layers, got " + std::to_string(stages));
  std::vector<double> until(costs.size() + 1, 0.0);
  for (size_t i = 0; i < costs.size(); ++i) until[i + 1] = until[i] + costs[i];
  const auto cost = [&](int stage, int64_t begin, int64_t end) {
    return until[static_cast<size_t>(end)] - until[static_cast<size_t>(begin)] +
           (stage == 0 ? first : 0.0) + (stage + 1 == stages ? last : 0.0);
  };
  // best[s][i]: of stages s and later on layers i and later, the dearest.
  const auto width = static_cast<size_t>(layers + 1);
  std::vector<std::vector<double>> best(
      static_cast<size_t>(stages + 1),
      std::vector<double>(width, std::numeric_limits<double>::infinity()));
  best.back()[width - 1] = 0.0;
  for (int stage = stages - 1; stage >= 0; --stage)
    for (int64_t begin = 0; begin < layers; ++begin)
      for (int64_t end = begin + 1; end <= layers; ++end) {
        double& here = best[static_cast<size_t>(stage)][static_cast<size_t>(begin)];
        const double rest = best[static_cast<size_t>(stage + 1)][static_cast<size_t>(end)];
        here = std::min(here, std::max(cost(stage, begin, end), rest));
      }
  const double dearest = best[0][0];
  std::vector<int64_t> borders = {0};
  for (int stage = 0; stage < stages; ++stage) {
    int64_t end = layers - (stages - 1 - stage);  // the longest that fits and leaves a way
    while (cost(stage, borders.back(), end) > dearest ||
           best[static_cast<size_t>(stage + 1)][static_cast<size_t>(end)] > dearest)
      --end;
    borders.push_back(end);
  }
  return borders;
}

}  // namespace zg::models
