#include "zerograd/runtime/comm/blame.h"

#include <algorithm>
#include <deque>

namespace zg::cpu {

Blame blame(const Activity& waiting, const std::vector<Activity>& ranks,
            std::chrono::steady_clock::time_point since) {
  Blame blame;
  std::vector<bool> seen(ranks.size());
  // Breadth first: the message names the late ranks that are nearest in the chain.
  for (std::deque<const Activity*> chain{&waiting}; !chain.empty(); chain.pop_front()) {
    const Activity& waits = *chain.front();
    const bool named = !blame.ranks.empty();
    for (const int rank : waits.awaits) {
      const auto at = static_cast<size_t>(rank);
      if (seen[at]) continue;
      seen[at] = true;
      const Activity& late = ranks[at];
      if (!late.awaits.empty()) {
        chain.push_back(&late);
      } else if (late.alive > since) {
        blame.alive = std::min(blame.alive.value_or(late.alive), late.alive);
      } else if (!named) {
        blame.ranks.push_back(rank);
        blame.verb = waits.verb;
        blame.place = waits.place;
      }
    }
  }
  return blame;
}

std::string ring(const std::vector<Activity>& ranks) {
  std::string who, places;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].awaits.empty()) continue;
    const std::string number = std::to_string(rank);
    who += (who.empty() ? "" : ", ") + number;
    places += (places.empty() ? "rank " : "; rank ") + number + " in " + ranks[rank].place;
  }
  return "ranks " + who + " wait for each other: " + places +
         "; every rank must make the same calls in one order";
}

}  // namespace zg::cpu
