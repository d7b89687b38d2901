#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace zg::tools {

inline constexpr int64_t default_micro_batch = 64;

/// What was asked of the three numbers.
struct BatchRequest {
  std::optional<int64_t> micro, accumulation, train;
  int64_t ranks = 1;
  std::string place;  ///< in the config that asks: its keys are named; empty: flags are
};

struct BatchSize {
  int64_t micro, accumulation, train;  ///< train = micro * accumulation * ranks
};

/// DeepSpeed's seven cases: whatever was not given follows from the rest. ConfigError with what was
/// given, what would solve it, and DeepSpeed's words. Neither `train` nor `micro` given is an error
/// of a config; flags then take 64 for `micro`.
BatchSize solve_batch_size(const BatchRequest& request);

/// The largest number up to `most` that divides `number`; both are above 0.
int64_t largest_divisor(int64_t number, int64_t most);

}  // namespace zg::tools
