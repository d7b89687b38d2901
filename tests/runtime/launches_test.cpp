#include "zerograd/runtime/launches.h"

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/tensor.h"

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
  CHECK(
      StepLaunches{.step = 1, .per_micro_batch = counter.counts(), .per_step = {}}.json() ==
      R"({"schema":"zerograd.launches/1","step":1,"per_micro_batch":{"launches":1,"bytes":5,)"
      R"("operations":50,"host_waits":1,"kernels":[{"op":"a","kernel":"k","launches":1,)"
      R"("blocks":2,"bytes":5,"operations":50,"dtype":"f32","class":"memory"}]},"per_step":{"launches":0,"bytes":0,)"
      R"("operations":0,"host_waits":0,"kernels":[]}})");
}

TEST_CASE("launches of a kernel with operands of another dtype are a row of their own") {
  LaunchCounter counter;
  LaunchRow row = one_launch("a", 5);
  counter.add(row);
  row.dtype = DType::bf16;
  row.kind = KernelClass::product;
  counter.add(row);
  counter.add(row);
  const LaunchCounts counts = counter.counts();
  REQUIRE(counts.rows.size() == 2);
  CHECK(counts.rows[0] == one_launch("a", 5));
  CHECK(counts.rows[1].launches == 2);
  CHECK(counts.rows[1].dtype == DType::bf16);
  CHECK(counts.rows[1].kind == KernelClass::product);
}

TEST_CASE("copies and fills on the cpu are counted in a run and in a plan, and waits are not") {
  for (const Device& device :
       {Device::cpu(0, {.count_launches = true}), Device::meta(0, {.count_launches = true})}) {
    CAPTURE(device.name());
    const Tensor x = Tensor::from(std::vector<float>{1, 2, 3}, {3}, device);
    fill_zero(x, device.compute());
    device.compute().synchronize();
    const LaunchCounts counts = device.launches()->counts();
    CHECK(counts.host_waits == 0);
    REQUIRE(counts.rows.size() == 2);
    CHECK(counts.rows[0] == LaunchRow{.op = "copy",
                                      .kernel = "memmove",
                                      .launches = 1,
                                      .bytes = 12,
                                      .kind = KernelClass::copy});
    CHECK(counts.rows[1] == LaunchRow{.op = "fill_zero",
                                      .kernel = "memset",
                                      .launches = 1,
                                      .bytes = 12,
                                      .kind = KernelClass::copy});
  }
  CHECK(Device::cpu().launches() == nullptr);
}
