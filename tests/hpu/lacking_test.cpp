#include <doctest/doctest.h>

#include <array>

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

TEST_CASE("a driver that is too old is refused with its version and with what to install") {
  {
    const ScopedVariable debian("ZE_TEST_DRIVER_VERSION", "24595");
    const std::string words =
        "the Level Zero driver is version 1.3.24595; expected build 30508 (Intel's compute runtime "
        "24.31) or newer; Debian's intel-opencl-icd is too old: install libze-intel-gpu1";
    CHECK(contains(zerograd("info").out, words));
    CHECK(contains(checked(zerograd(short_run), 6).error, words));
  }
  const ScopedVariable oldest("ZE_TEST_DRIVER_VERSION", "30508");
  CHECK(contains(zerograd("info").out, "hpu:1"));
}

TEST_CASE("only GPUs with memory of their own are taken for accelerators") {
  for (const char* kind : {"cpu", "integrated"}) {
    const ScopedVariable claims("ZE_TEST_DRIVER_KIND", kind);
    const std::string info = zerograd("info").out;
    CHECK(!contains(info, "hpu:0"));
    CHECK(contains(info, std::string("the Level Zero driver shows no GPU with memory of its own, "
                                     "only a device of kind ") +
                             kind));
  }
  const ScopedVariable claims("ZE_TEST_DRIVER_KIND", "gpu");
  CHECK(contains(zerograd("info").out, "a device of kind gpu"));
}

TEST_CASE("a run maps few chunks of device memory") {
  const ScopedVariable trace("ZE_TEST_DRIVER_TRACE", "1");
  // 25 MiB of states: an arena that maps what it needs, step by step, would map 10.
  const std::string wide =
      "train --data sort --n-layer 2 --n-head 4 --n-embd 256 --device hpu --steps 2 --batch-size 2 "
      "--score-samples 0";
  CHECK(count_of(checked(zerograd(wide)).error, "device 0: chunk ") <= 3);
}

TEST_CASE("a step waits for the device once, and only this wait appends a barrier") {
  const ScopedVariable trace("ZE_TEST_DRIVER_TRACE", "1");
  const auto counts = [](const char* steps) {
    const std::string said =
        checked(zerograd(sort_run + "--device hpu --batch-size 2 --steps " + steps)).error;
    return std::array{count_of(said, "the host waits for an event"),
                      count_of(said, "device 0: barrier")};
  };
  const auto three = counts("3"), five = counts("5");
  CHECK(five[0] - three[0] == 2);
  CHECK(five[1] - three[1] == 2);
}

TEST_CASE("copies of offloaded states run on the copy engine, where the device has one") {
  const ScopedVariable trace("ZE_TEST_DRIVER_TRACE", "1");
  const auto copies = [](const char* flags, const char* groups) {
    const ScopedVariable engines("ZE_TEST_DRIVER_GROUPS", groups);
    return count_of(checked(zerograd(short_run + flags)).error, "device 0, copy engine: copy");
  };
  CHECK(copies(" --cpu-offload", "2") > 10);
  CHECK(copies(" --cpu-offload", "1") == 0);
  CHECK(copies("", "2") == 0);
}

TEST_CASE("a driver without ordered lists or without a copy engine gives the same bits") {
  const std::string line = short_run + " --cpu-offload";
  const std::string expected = hash_of(line);
  for (const char* lacks : {"ZE_TEST_DRIVER_IN_ORDER", "ZE_TEST_DRIVER_GROUPS"}) {
    const ScopedVariable lacking(lacks, lacks[15] == 'I' ? "0" : "1");
    CHECK(hash_of(line) == expected);
  }
}

TEST_CASE("info and train warn of a device whose division is not correctly rounded") {
  const std::string words = "other bits with host offload than without";
  CHECK(!contains(zerograd("info").out, words));
  const ScopedVariable lacking("ZE_TEST_DRIVER_ROUNDED", "0");
  CHECK(contains(zerograd("info").out, words));
  CHECK(contains(checked(zerograd(short_run)).error, words));
}
