#include "zerograd/runtime/comm/call.h"

#include <doctest/doctest.h>

using namespace zg::cpu;

namespace {

const std::chrono::steady_clock::time_point since{std::chrono::seconds(100)};
const auto before = since - std::chrono::seconds(1), after = since + std::chrono::seconds(1),
           later = since + std::chrono::seconds(2);

}  // namespace

TEST_CASE("blame names the late rank and the nearest place at which another rank waits for it") {
  // Rank 0 waits for 1, which is late, and for 2, which waits for 3, as late.
  const Activity waiting{.awaits = {1, 2}, .place = "near"};
  const std::vector<Activity> ranks = {waiting,
                                       {.alive = before},
                                       {.awaits = {3}, .verb = "finish", .place = "far"},
                                       {.alive = before}};
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
    "blame names no rank that was active recently, and none of ranks that wait for each other") {
  const Activity waiting{.awaits = {1, 2}, .place = "here"};
  const Blame slow = blame(waiting, {waiting, {.alive = after}, {.alive = later}}, since);
  CHECK(slow.ranks.empty());
  CHECK(slow.alive == after);

  const std::vector<Activity> ranks = {{.awaits = {1}, .place = "a"},
                                       {.awaits = {0}, .place = "b"}};
  const Blame none = blame(ranks[0], ranks, since);
  CHECK(none.ranks.empty());
  CHECK(!none.alive);
  CHECK(ring(ranks).starts_with("ranks 0, 1 wait for each other: rank 0 in a; rank 1 in b"));
}
