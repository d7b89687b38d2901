#include "zerograd/models/pipeline_schedule.h"

#include <algorithm>
#include <limits>
#include <string>

#include "zerograd/runtime/error.h"

namespace zg::models {

using Kind = PipelineAction::Kind;

namespace {

/// Of cutting what is left into what stages are left.
struct Way {
  double dearest = std::numeric_limits<double>::infinity();
  double squares = std::numeric_limits<double>::infinity();
  int64_t end = 0;  // of the first of these stages in the evenest way
};

}  // namespace

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
  // ways[s][i]: of stages s and later on layers i and later.
  const auto width = static_cast<size_t>(layers + 1);
  std::vector<std::vector<Way>> ways(static_cast<size_t>(stages + 1), std::vector<Way>(width));
  ways.back()[width - 1] = {.dearest = 0.0, .squares = 0.0};
  const auto evenest = [&](double limit) {
    for (int stage = stages - 1; stage >= 0; --stage)
      for (int64_t begin = 0; begin < layers; ++begin) {
        Way& here = ways[static_cast<size_t>(stage)][static_cast<size_t>(begin)] = {};
        for (int64_t end = begin + 1; end <= layers; ++end) {
          const Way& rest = ways[static_cast<size_t>(stage + 1)][static_cast<size_t>(end)];
          const double own = cost(stage, begin, end);
          if (own > limit || rest.dearest > limit) continue;
          const double squares = own * own + rest.squares;
          here.dearest = std::min(here.dearest, std::max(own, rest.dearest));
          if (squares > here.squares) continue;
          here.squares = squares;
          here.end = end;  // of equal ones the last: the longest
        }
      }
  };
  evenest(std::numeric_limits<double>::max());
  evenest(ways[0][0].dearest);
  std::vector<int64_t> borders = {0};
  for (int stage = 0; stage < stages; ++stage)
    borders.push_back(ways[static_cast<size_t>(stage)][static_cast<size_t>(borders.back())].end);
  return borders;
}

}  // namespace zg::models
