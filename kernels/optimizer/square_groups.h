#pragma once

#include <algorithm>
#include <cstdint>

namespace zg::hpu {

/// The number of work-groups for the granules of a tensor of SumOfSquares
/// (kernels/optimizer/optimizer.h). A work-item adds one granule at a time; after more than
/// `max_granules` granules the counters of a work-group could overflow.
inline int64_t square_groups(int64_t granules) {
  constexpr int64_t group = 256, enough_groups = 256, max_granules = int64_t{1} << 18;
  return std::max(std::min(enough_groups, (granules + group - 1) / group),
                  (granules + max_granules - 1) / max_granules);
}

}  // namespace zg::hpu
