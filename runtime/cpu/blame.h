#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace zg::cpu {

/// What a rank does while another waits, perhaps for too long.
struct Doing {
  std::vector<int> awaits = {};  ///< ranks, by their numbers among all; empty: its own code
  const char* verb = "arrive";   ///< what they are to do
  std::string place = {};        ///< where it waits for them
  std::chrono::steady_clock::time_point alive{};  ///< when it last went on
};

/// Who keeps a rank waiting: whoever waits for somebody in another group is not to blame, but the
/// one at the end of the chain.
struct Blame {
  std::vector<int> ranks;  ///< in their own code, or silent, since before the time that was asked
  const char* verb = nullptr;
  std::string place;  ///< where others wait for them
  /// If there are none: since when the one longest in its own code is there. Absent: ranks wait for
  /// each other in a ring.
  std::optional<std::chrono::steady_clock::time_point> alive = {};
};
Blame blame(const Doing& waiting, const std::vector<Doing>& ranks,
            std::chrono::steady_clock::time_point since);

/// What is said where nobody is to blame.
std::string ring(const std::vector<Doing>& ranks);

}  // namespace zg::cpu
