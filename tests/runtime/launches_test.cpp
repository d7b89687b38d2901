#include "zerograd/runtime/launches.h"

#include <doctest/doctest.h>

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/error.h"

using namespace zg;

namespace {

LaunchRow one_launch(const std::string& op, int64_t bytes) {
  return {.op = op,
          .kernel = "k",
          .launches = 1,
          .blocks = 2,
          .bytes = bytes,
          .operations = 10 * bytes};
}

}  // namespace

TEST_CASE(
    "launches are summed by op and kernel, and those since an earlier time are the new ones") {
  LaunchCounter counter;
  counter.add(one_launch("b", 3));
  counter.add(one_launch("a", 5));
  const LaunchCounts before = counter.counts();
  CHECK(before.launches() == 2);
  counter.add(one_launch("b", 7));
  const LaunchCounts all = counter.counts(), since = all.since(before);
  REQUIRE(all.rows.size() == 2);
  CHECK(all.rows[0].op == "a");
  CHECK(all.rows[1] ==
        LaunchRow{
            .op = "b", .kernel = "k", .launches = 2, .blocks = 4, .bytes = 10, .operations = 100});
  CHECK(all.bytes() == 15);
  CHECK(all.operations() == 150);
  REQUIRE(since.rows.size() == 1);
  CHECK(since.rows[0] == one_launch("b", 7));
  LaunchCounts sum = before;
  sum += since;
  CHECK(sum == all);
}

TEST_CASE("a wait of the host counts only if something was launched before it") {
  LaunchCounter counter;
  counter.add_wait();
  CHECK(counter.counts().host_waits == 0);
  counter.add(one_launch("a", 1));
  counter.add_wait();
  counter.add_wait();
  CHECK(counter.counts().host_waits == 1);
}

TEST_CASE("the record of a step's launches has its totals before its kernels") {
  LaunchCounter counter;
  counter.add(one_launch("a", 5));
  counter.add_wait();
  CHECK(StepLaunches{.step = 1, .per_micro_batch = counter.counts(), .per_step = {}}.json() ==
        R"({"schema":"zerograd.launches/1","step":1,"per_micro_batch":{"launches":1,"bytes":5,)"
        R"("operations":50,"host_waits":1,"kernels":[{"op":"a","kernel":"k","launches":1,)"
        R"("blocks":2,"bytes":5,"operations":50}]},"per_step":{"launches":0,"bytes":0,)"
        R"("operations":0,"host_waits":0,"kernels":[]}})");
}

TEST_CASE("launches are not counted on the cpu, on hpu or in their plans") {
  CHECK_THROWS_WITH_AS(Device::cpu(0, {.count_launches = true}),
                       "device: launches are counted on cuda and in plans for it, got cpu; try "
                       "without count_launches",
                       Unsupported);
  CHECK_THROWS_WITH_AS(Device::meta(0, {.count_launches = true}, Device::Type::hpu),
                       "device: launches are counted on cuda and in plans for it, got a plan for "
                       "hpu; try without count_launches",
                       Unsupported);
  CHECK(Device::cpu().launches() == nullptr);
}
