#include "zerograd/autograd/pipeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <string>

#include "zerograd/runtime/error.h"

using namespace zg;
using Kind = PipelineAction::Kind;

namespace {

constexpr PipelineSchedule schedules[] = {PipelineSchedule::one_f_one_b, PipelineSchedule::gpipe};

std::string words(PipelineSchedule schedule, int stages, int stage, int64_t micro_batches) {
  std::string order;
  for (const PipelineAction& action : pipeline_actions(schedule, stages, stage, micro_batches))
    order += (order.empty() ? "" : " ") + std::string(action.kind == Kind::forward ? "F" : "B") +
             std::to_string(action.micro_batch);
  return order;
}

// When all is done, if a forward takes 1 and a backward 2 on every stage and messages nothing.
int64_t end_of_step(PipelineSchedule schedule, int stages, int64_t micro_batches) {
  std::vector<std::vector<PipelineAction>> orders;
  for (int stage = 0; stage < stages; ++stage)
    orders.push_back(pipeline_actions(schedule, stages, stage, micro_batches));
  std::map<std::pair<int, std::pair<Kind, int64_t>>, int64_t> ends;
  std::vector<size_t> next(orders.size());
  std::vector<int64_t> free(orders.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < stages; ++stage) {
      const auto own = static_cast<size_t>(stage);
      if (next[own] == orders[own].size()) continue;
      const auto [kind, micro_batch] = orders[own][next[own]];
      const int source = kind == Kind::forward ? stage - 1 : stage + 1;
      int64_t start = free[own];
      if (source >= 0 && source < stages) {
        const auto there = ends.find({source, {kind, micro_batch}});
        if (there == ends.end()) continue;
        start = std::max(start, there->second);
      }
      free[own] = start + (kind == Kind::forward ? 1 : 2);
      ends[{stage, {kind, micro_batch}}] = free[own];
      ++next[own];
      moved = true;
    }
  }
  for (size_t stage = 0; stage < orders.size(); ++stage)
    REQUIRE(next[stage] == orders[stage].size());  // no stage waits for ever
  return *std::ranges::max_element(free);
}

double most_expensive(std::span<const double> costs, double first, double last,
                      const std::vector<int64_t>& borders) {
  double most = 0.0;
  for (size_t stage = 0; stage + 1 < borders.size(); ++stage) {
    const double cost =
        std::accumulate(costs.begin() + borders[stage], costs.begin() + borders[stage + 1], 0.0) +
        (stage == 0 ? first : 0.0) + (stage + 2 == borders.size() ? last : 0.0);
    most = std::max(most, cost);
  }
  return most;
}

// Every way to cut.
double least(std::span<const double> costs, double first, double last, int stages,
             std::vector<int64_t> borders = {0}) {
  const auto layers = static_cast<int64_t>(costs.size());
  if (static_cast<int>(borders.size()) == stages) {
    borders.push_back(layers);
    return most_expensive(costs, first, last, borders);
  }
  double found = std::numeric_limits<double>::infinity();
  const int64_t left = stages - static_cast<int64_t>(borders.size());
  for (int64_t end = borders.back() + 1; end <= layers - left; ++end) {
    std::vector<int64_t> more = borders;
    more.push_back(end);
    found = std::min(found, least(costs, first, last, stages, more));
  }
  return found;
}

}  // namespace

TEST_CASE("1F1B runs backward as early as it can, and GPipe after all forward passes") {
  CHECK(words(PipelineSchedule::one_f_one_b, 4, 0, 6) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5");
  CHECK(words(PipelineSchedule::one_f_one_b, 4, 2, 6) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5");
  CHECK(words(PipelineSchedule::one_f_one_b, 4, 3, 3) == "F0 B0 F1 B1 F2 B2");
  CHECK(words(PipelineSchedule::one_f_one_b, 4, 0, 2) == "F0 F1 B0 B1");
  CHECK(words(PipelineSchedule::gpipe, 4, 2, 3) == "F0 F1 F2 B0 B1 B2");
  CHECK(words(PipelineSchedule::one_f_one_b, 1, 0, 3) == "F0 B0 F1 B1 F2 B2");
}

TEST_CASE("a step of m micro-batches on p stages takes m + p - 1 slots, as pipeline_bubble says") {
  for (const PipelineSchedule schedule : schedules)
    for (const int stages : {1, 2, 3, 4, 8})
      for (const int64_t micro_batches : {1, 2, 3, 4, 8, 13}) {
        INFO("stages ", stages, ", micro batches ", micro_batches);
        CHECK(end_of_step(schedule, stages, micro_batches) == 3 * (micro_batches + stages - 1));
        const double busy = 3.0 * static_cast<double>(micro_batches);
        CHECK(pipeline_bubble(stages, micro_batches) ==
              doctest::Approx(
                  1.0 - busy / static_cast<double>(end_of_step(schedule, stages, micro_batches))));
      }
}

TEST_CASE("1F1B has at most p - stage micro-batches in flight, and GPipe all of them") {
  for (const PipelineSchedule schedule : schedules)
    for (const int stage : {0, 1, 3})
      for (const int64_t micro_batches : {1, 2, 9}) {
        int64_t under_way = 0, most = 0, next[2] = {0, 0};
        for (const PipelineAction& action : pipeline_actions(schedule, 4, stage, micro_batches)) {
          CHECK(action.micro_batch == next[action.kind == Kind::backward]++);
          under_way += action.kind == Kind::forward ? 1 : -1;
          CHECK(under_way >= 0);
          most = std::max(most, under_way);
        }
        CHECK(under_way == 0);
        CHECK(most == max_in_flight(schedule, 4, stage, micro_batches));
        CHECK(most == (schedule == PipelineSchedule::gpipe
                           ? micro_batches
                           : std::min<int64_t>(micro_batches, 4 - stage)));
      }
}

TEST_CASE("balanced_stages cuts layers so that the most expensive stage costs the least") {
  const std::vector<double> even(8, 1.0), uneven = {5, 1, 1, 1, 3, 2, 4};
  CHECK(balanced_stages(even, 0, 0, 4) == std::vector<int64_t>{0, 2, 4, 6, 8});
  CHECK(balanced_stages(even, 0, 1, 2) == std::vector<int64_t>{0, 5, 8});
  CHECK(balanced_stages(even, 0, 20, 2) == std::vector<int64_t>{0, 7, 8});
  // A head that costs more than all others makes the others no less even.
  CHECK(balanced_stages(std::vector<double>(24, 1.0), 0, 20, 5) ==
        std::vector<int64_t>{0, 6, 12, 18, 23, 24});
  CHECK(balanced_stages(even, 0, 0, 1) == std::vector<int64_t>{0, 8});
  for (int stages = 1; stages <= 5; ++stages)
    for (const double last : {0.0, 1.5, 6.0}) {
      CAPTURE(stages);
      const std::vector<int64_t> borders = balanced_stages(uneven, 0.5, last, stages);
      CHECK(borders.size() == static_cast<size_t>(stages) + 1);
      CHECK(borders.back() == 7);
      CAPTURE(borders);
      const bool rise =
          std::ranges::adjacent_find(borders, std::greater_equal<>()) == borders.end();
      CHECK(rise);
      CHECK(most_expensive(uneven, 0.5, last, borders) == least(uneven, 0.5, last, stages));
    }
  CHECK_THROWS_WITH_AS(balanced_stages(std::span(even).first(3), 0, 0, 4),
                       "pipeline: expected 1 to 3 stages for as many layers, got 4", ConfigError);
}
