#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>

#include "tests/accelerator/command_runs.h"
#include "tests/support/scoped_variable.h"

using namespace zg::testing;

// The command on devices of Level Zero.

TEST_CASE("the test driver's devices report that they are not accelerators") {
  const Outcome info = checked(zerograd("info"));
  CHECK(contains(info.out, "zerograd test driver (CPU), not an accelerator"));
  CHECK(contains(info.out, "hpu:1"));
  const Outcome run = checked(zerograd(sort_run + "--use_hpu --steps 1"));
  CHECK(contains(run.error, " hpu:0"));
  CHECK(contains(run.error, "zerograd test driver (CPU), not an accelerator"));
}

TEST_CASE(
    "ranks on hpu give the same bits as processes and as threads, and use the planned memory") {
  if (skips_mpi("ranks on hpu as processes")) return;
  const TemporaryFolder folder;
  const std::string measured = folder / "measured.json", planned = folder / "planned.json";
  for (const char* stage : {"0", "3"}) {
    CAPTURE(stage);
    const std::string line = sort_run + "--device hpu --steps 3 --batch-size 2 --zero-stage " +
                             stage + " --param-persistence-threshold 0 --memory-json ";
    const Outcome outcome = checked(mpirun("-np 2 zerograd " + line + measured));
    CHECK(contains(outcome.error, " hpu:1"));
    CHECK(line_after(outcome.out, "param_hash ") == hash_of(line + planned + " --ranks 2"));
    CHECK(read_file(planned) == read_file(measured));
  }
}

TEST_CASE(
    "random command orders that Level Zero allows give one hash and pass its validation layer") {
  const std::string line = sort_run +
                           "--device hpu --ranks 2 --steps 2 --batch-size 2 --precision bf16 "
                           "--zero-stage 3 --param-persistence-threshold 0 --cpu-offload";
  const std::string expected = hash_of(line);
  const ScopedVariable validation("ZE_ENABLE_VALIDATION_LAYER", "1");
  const ScopedVariable parameters("ZE_ENABLE_PARAMETER_VALIDATION", "1");
  for (int seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    const ScopedVariable chaos("ZE_TEST_DRIVER_CHAOS", std::to_string(seed).c_str());
    CHECK(hash_of(line) == expected);
  }
}

TEST_CASE("modules are built once for each device, and again if the cached binary is damaged") {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const std::string kept = folder / "kept",
                    line = sort_run + "--steps 1 --batch-size 1 --device hpu";
  const ScopedVariable trace("ZE_TEST_DRIVER_TRACE", "1");
  std::string expected;
  struct Built {
    size_t from_spirv, from_native;
    bool operator==(const Built&) const = default;
  };
  const auto built = [&](const std::string& flags = "") {
    const Outcome run = checked(zerograd(line + flags));
    const std::string hash = line_after(run.out, "param_hash ");
    if (expected.empty()) expected = hash;
    if (flags.empty()) CHECK(hash == expected);
    return Built{count_of(run.error, "module from SPIR-V"),
                 count_of(run.error, "module from native code")};
  };
  const auto files = [&] {
    return static_cast<size_t>(std::distance(fs::directory_iterator(kept), {}));
  };
  size_t modules = 0;
  {
    const ScopedVariable cache("ZG_HPU_CACHE", kept.c_str());
    modules = built().from_spirv;
    CHECK(modules > 5);
    CHECK(files() == modules);
    CHECK(built() == Built{0, modules});
    const std::string one = fs::directory_iterator(kept)->path();
    std::string bytes = read_file(one);
    bytes.back() ^= 1;
    write_file(one, bytes);
    CHECK(built() == Built{1, modules - 1});
    CHECK(built() == Built{0, modules});
    CHECK(built(" --ranks 2").from_spirv == 0);  // the other device is of the same type
    CHECK(files() >= modules);
  }
  write_file(folder / "file", "");
  for (const std::string& place : {folder / "file", std::string("/proc/nowhere"), std::string()}) {
    CAPTURE(place);
    const ScopedVariable cache("ZG_HPU_CACHE", place.c_str());
    CHECK(built() == Built{modules, 0});
  }
}

TEST_CASE("an allocation that does not fit names the request and what the device holds") {
  const ScopedVariable memory("ZE_TEST_DRIVER_MEMORY", "8388608");
  const Outcome outcome = checked(
      zerograd("train --data sort --model-type gpt-mini --batch-size 1 --steps 2 --device hpu"), 3);
  for (const char* part : {"error: OutOfMemory: allocate: ", " on hpu:0 (device) in phase ",
                           "arena: the system refused to grow from 8388608 to ", " MiB live",
                           "\n  parameter ", "\n  optimizer "})
    CHECK(contains(outcome.error, part));
}

TEST_CASE("features that an hpu lacks are refused by name") {
  const auto refused = [](const std::string& line, const std::string& part) {
    CHECK(contains(checked(zerograd(line), 6).error, part));
  };
  const std::string no_f16 = ": hpu devices do not compute in f16; expected f32 or bf16";
  refused(sort_run + "--device hpu --precision f16 --steps 1", "--precision" + no_f16);
  refused("plan --data sort --device hpu --precision f16", "--precision" + no_f16);
  const TemporaryFolder folder;
  hash_of(sort_run + "--precision f16 --steps 1 --save " + folder.path());
  refused("eval " + folder.path() + " --device hpu", no_f16);
  refused("generate " + folder.path() + " --device hpu --prompt 012", no_f16);
  refused("tune --data sort --device hpu", "--device hpu: tune predicts");
  const ScopedVariable nowhere("ZE_ENABLE_ALT_DRIVERS", "/nowhere/libze_none.so");
  refused(sort_run + "--device hpu --steps 1", "--device hpu: Level Zero finds no driver");
  CHECK(contains(zerograd("info").out, "absent: Level Zero finds no driver"));
  // A plan needs no device.
  checked(zerograd("plan --data sort --model-type gpt-nano --device hpu"));
}
