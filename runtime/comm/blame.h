#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace zg::cpu {

/// The activity of a rank while another rank waits, perhaps for too long.
struct Activity {
  std::vector<int> awaits = {};  ///< ranks, by their numbers among all; empty: its own code
  const char* verb = "arrive";   ///< "arrive" or another action that it expects from them
  std::string place = {};        ///< where it waits for them
  std::chrono::steady_clock::time_point alive{};  ///< when it last went on
};

/// The ranks that keep a rank waiting. A rank that itself waits in another group is not to blame;
/// the ranks at the end of the chain are.
struct Blame {
  std::vector<int> ranks;  ///< in their own code, or silent, since before the time that was asked
  const char* verb = nullptr;
  std::string place;  ///< where others wait for them
  /// Without such ranks: when the rank that has been in its own code longest entered it. Absent:
  /// ranks wait for each other in a ring.
  std::optional<std::chrono::steady_clock::time_point> alive = {};
};
Blame blame(const Activity& waiting, const std::vector<Activity>& ranks,
            std::chrono::steady_clock::time_point since);

/// The error message when ranks wait for each other in a ring, so that no single rank is to blame.
std::string ring(const std::vector<Activity>& ranks);

}  // namespace zg::cpu
