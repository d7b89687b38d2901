#include "tests/accelerator/command_runs.h"

#include <cmath>
#include <numeric>

using namespace zg::testing;

namespace {

const std::string accelerator_name = ZG_TEST_DEVICE;
const std::string on_accelerator = "--device " + accelerator_name + " ";

}  // namespace

TEST_CASE("training on the sort data gives the CPU's losses on an accelerator, up to rounding") {
  const TemporaryFolder folder;
  const auto losses = [&](const std::string& device) {
    const std::string metrics = folder / device;
    hash_of(sort_run + "--steps 24 --batch-size 2 --lr 2e-3 --device " + device + " --metrics " +
            metrics);
    return losses_of(metrics);
  };
  const std::vector<double> cpu = losses("cpu"), there = losses(accelerator_name);
  REQUIRE(there.size() == 24);
  for (size_t step = 0; step < 24; ++step) {
    CAPTURE(step);
    CHECK(std::fabs(there[step] - cpu[step]) <= 1e-3);
  }
  CHECK(std::accumulate(there.end() - 10, there.end(), 0.0) / 10 < 0.8 * there[0]);
  CHECK(there != cpu);  // equal bits would mean that the CPU was used
}

TEST_CASE(
    "ZeRO stages and offload on two accelerators give equal parameter hashes and the planned "
    "memory") {
  const TemporaryFolder folder;
  const std::string measured = folder / "measured.json", planned = folder / "planned.json";
  std::string expected;
  for (const char* flags :
       {"--zero-stage 0", "--zero-stage 2",
        "--zero-stage 3 --param-persistence-threshold 0 --prefetch-bucket-size 0",
        "--zero-stage 1 --cpu-offload",
        "--zero-stage 3 --cpu-offload --offload-activations host --activation-checkpoint",
        "--zero-stage 3 --offload-optimizer nvme --offload-param nvme --nvme-path /tmp"}) {
    CAPTURE(flags);
    const std::string line = sort_run + on_accelerator + "--ranks 2 --steps 2 --batch-size 2 " +
                             flags + " --memory-json ";
    const std::string hash = hash_of(line + measured);
    if (expected.empty()) expected = hash;
    CHECK(hash == expected);
    checked(zerograd("plan" + line.substr(line.find(' ')) + planned));
    CHECK(read_file(planned) == read_file(measured));
    CHECK(contains(read_file(measured),
                   "\"machine\":{\"backend\":\"" + accelerator_name + "\",\"granule\":256}"));
  }
  CHECK(hash_of(sort_run + on_accelerator + "--steps 2 --grad-accum 2 --batch-size 2") == expected);
}

TEST_CASE("a checkpoint moves between an accelerator and the cpu") {
  const TemporaryFolder folder;
  const std::string run = sort_run + "--batch-size 1 --save " + folder.path();
  const std::string on = "train --score-samples 0 --progress off --resume " + folder.path();
  const std::string whole =
      hash_of(run + "/whole " + on_accelerator + "--precision bf16 --steps 4 --grad-accum 2");
  hash_of(run + "/parts " + on_accelerator + "--precision bf16 --steps 2 --ranks 2");
  CHECK(hash_of(on + "/parts " + on_accelerator + "--steps 4") == whole);
  hash_of(on + "/parts --device cpu --steps 6 --save " + folder.path() + "/cpu");
  hash_of(on + "/cpu " + on_accelerator + "--steps 7");

  const Outcome eval =
      checked(zerograd("eval " + (folder / "whole") + " --batch-size 2 --eval-batches 1 " +
                       "--score-samples 1 " + on_accelerator));
  for (const char* part : {"val loss ", "test final score: "}) CHECK(contains(eval.out, part));
  const Outcome text = checked(
      zerograd("generate " + (folder / "whole") + " --prompt 012012 --length 5 " + on_accelerator));
  CHECK(text.out.starts_with("012012"));
}
