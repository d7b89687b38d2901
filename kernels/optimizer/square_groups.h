#pragma once

#include <algorithm>
#include <cstdint>

namespace zg::hpu {

/// How the granules of SumOfSquares (kernels/optimizer/optimizer.h) are distributed over
/// work-groups. Each work-group writes its integers to scratch; they are added in order.
struct SquareGroups {
  int64_t groups;

  explicit SquareGroups(int64_t granules) {
    // A work-item adds one granule at a time; after more than `max_granules` granules the counters
    // of a work-group could overflow.
    constexpr int64_t group = 256, enough_groups = 256, max_granules = int64_t{1} << 18;
    groups = std::max(std::min(enough_groups, (granules + group - 1) / group),
                      (granules + max_granules - 1) / max_granules);
  }
};

}  // namespace zg::hpu
