#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg::models {

/// In which order a stage works on the micro-batches of a step. Both go back in rising order, so
/// both give the same bits.
enum class PipelineSchedule : uint8_t {
  one_f_one_b,  ///< as soon as it can a stage goes back with what it has; at most as many
                ///< micro-batches are under way as stages follow. Narayanan et al. 2021,
                ///< arXiv:2104.04473
  gpipe         ///< all forward, then all backward. Huang et al. 2019, arXiv:1811.06965
};

struct PipelineAction {
  enum class Kind : uint8_t { forward, backward } kind;
  int64_t micro_batch;
  bool operator==(const PipelineAction&) const = default;
};

/// What stage `stage` of `stages` does in a step of so many micro-batches.
ZG_API std::vector<PipelineAction> actions(PipelineSchedule schedule, int stages, int stage,
                                           int64_t micro_batches);

/// The most micro-batches that a stage has under way at once.
ZG_API int64_t most_in_flight(PipelineSchedule schedule, int stages, int stage,
                              int64_t micro_batches);

/// The share of a step in which a stage waits when every stage takes equally long and messages take
/// no time: (p - 1) / (m + p - 1), of both schedules.
ZG_API double pipeline_bubble(int stages, int64_t micro_batches);

/// Cuts a row of layers into contiguous stages so that the dearest costs as little as can be; of
/// several such ways the evenest, by the sum of squares, and then the one whose first stages are
/// the longer. `first` and `last`: what
/// the first and last stage do besides. stages + 1 borders, from 0 to the number of layers, each
/// stage with a layer at least. ConfigError when there are fewer layers than stages.
ZG_API std::vector<int64_t> balanced_stages(std::span<const double> costs, double first,
                                            double last, int stages);

}  // namespace zg::models
