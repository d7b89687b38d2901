#include "zerograd/runtime/comm/call.h"

using namespace zg::cpu;

namespace {

const std::chrono::steady_clock::time_point since{std::chrono::seconds(100)};
const auto before = since - std::chrono::seconds(1), after = since + std::chrono::seconds(1),
           later = since + std::chrono::seconds(2);

}  // namespace

TEST_CASE(
    "blame follows the waits to the nearest late rank and names the place where a rank waits "
    "directly for it") {
  // Rank 0 waits for rank 1, which is late, and for rank 2. Rank 2 waits for rank 3, which is
  // equally late.
  const Activity waiting{.awaits = {1, 2}, .place = "near"};
  const std::vector<Activity> ranks = {waiting,
                                       {.last_progress = before},
                                       {.awaits = {3}, .verb = "finish", .place = "far"},
                                       {.last_progress = before}};
  const Blame near = blame(waiting, ranks, since);
  CHECK(near.ranks == std::vector<int>{1});
  CHECK(near.place == "near");
  CHECK(near.verb == std::string("arrive"));

  const Blame far = blame({.awaits = {2}, .place = "near"}, ranks, since);
  CHECK(far.ranks == std::vector<int>{3});
  CHECK(far.place == "far");
  CHECK(far.verb == std::string("finish"));
}

TEST_CASE(
    "blame names no rank that made progress after the given time, and no rank in a cycle of "
    "waits") {
  const Activity waiting{.awaits = {1, 2}, .place = "here"};
  const Blame slow =
      blame(waiting, {waiting, {.last_progress = after}, {.last_progress = later}}, since);
  CHECK(slow.ranks.empty());
  CHECK(slow.last_progress == after);

  const std::vector<Activity> ranks = {{.awaits = {1}, .place = "a"},
                                       {.awaits = {0}, .place = "b"}};
  const Blame none = blame(ranks[0], ranks, since);
  CHECK(none.ranks.empty());
  CHECK(!none.last_progress);
  CHECK(deadlock(ranks).starts_with("ranks 0, 1 wait for each other: rank 0 in a; rank 1 in b"));
}
