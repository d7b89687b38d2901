#pragma once

#include <cstdint>
#include <optional>

namespace zg::tools {

/// What was asked of the three numbers; at least one is set.
struct BatchRequest {
  std::optional<int64_t> micro, accumulation, train;
  int64_t ranks = 1;
};

struct BatchSize {
  int64_t micro, accumulation, train;  ///< train = micro * accumulation * ranks
};

/// DeepSpeed's seven cases: whatever was not given follows from the rest. ConfigError with what was
/// given, what would solve it, and DeepSpeed's words. Nothing but `accumulation` given takes 64 for
/// `micro`.
BatchSize solve_batch_size(const BatchRequest& request);

}  // namespace zg::tools
