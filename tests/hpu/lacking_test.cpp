#include <doctest/doctest.h>

#include "tests/accelerator/command_runs.h"
#include "tests/support/scoped_variable.h"

using namespace zg::testing;

// Devices and drivers that lack something say so.
namespace {

const std::string short_run = sort_run + "--device hpu --steps 2 --batch-size 2";

}  // namespace

TEST_CASE("a driver that cannot import host memory is refused, and the function is named") {
  const ScopedVariable lacking("ZE_TEST_DRIVER_IMPORT", "0");
  CHECK(contains(zerograd("info").out, "hpu:1"));
  const Outcome refused = checked(zerograd(short_run), 1);
  CHECK(contains(refused.error,
                 "DeviceError: hpu: the driver has no "
                 "zexDriverImportExternalPointer, so that devices cannot use "
                 "pinned memory"));
  CHECK(contains(refused.error, "try a newer driver, or cpu"));
}

TEST_CASE("info and train warn of a device whose division is not correctly rounded") {
  const std::string words = "other bits with host offload than without";
  CHECK(!contains(zerograd("info").out, words));
  const ScopedVariable lacking("ZE_TEST_DRIVER_ROUNDED", "0");
  CHECK(contains(zerograd("info").out, words));
  CHECK(contains(checked(zerograd(short_run)).error, words));
}
