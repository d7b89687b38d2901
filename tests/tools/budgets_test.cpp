#include <doctest/doctest.h>

#include <filesystem>

#include "tests/small_disk.h"
#include "tests/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

/// The bytes in brackets behind `words`: "take 1.00 MiB (1048576 bytes)".
int64_t bytes_after(const std::string& text, const std::string& words) {
  const size_t found = text.find(words);
  REQUIRE(found != std::string::npos);
  return std::stoll(text.substr(text.find('(', found) + 1));
}

constexpr const char* small_model =
    " --data sort --batch-size 8 --ranks 2 --zero-stage 3 --precision bf16 --score-samples 0 "
    "--param-persistence-threshold 0 --log-interval 0 --steps 2 ";

}  // namespace

TEST_CASE("a host's cap of one byte less than planned is refused before step 0, the plan trains") {
  const TemporaryFolder folder;
  for (const std::string offload :
       {"--cpu-offload ", "--cpu-offload --offload-activations host --model-type gpt-mini ",
        "--offload-optimizer nvme --offload-param nvme --offload-gradients host --nvme-path /tmp ",
        "--offload-activations nvme --nvme-path /tmp --cpu-offload --model-type gpt-micro "}) {
    CAPTURE(offload);
    const std::string run = small_model + offload + "--host-memory ";
    const Outcome refused = zerograd("train" + run + "1 --metrics " + (folder / "metrics"));
    CAPTURE(refused.error);
    CHECK(refused.status == 3);
    CHECK(refused.out.empty());
    CHECK(!contains(refused.error, "rank 0/2 pid"));
    CHECK(!std::filesystem::exists(folder / "metrics"));
    CHECK(contains(refused.error, "error: OutOfMemory: --host-memory: a rank takes "));
    CHECK(contains(refused.error, "; try "));
    const int64_t needed = bytes_after(refused.error, "a rank takes ");
    CHECK(zerograd("train" + run + std::to_string(needed - 1)).status == 3);
    const Outcome trained =
        zerograd("train" + run + std::to_string(needed) + " --save " + (folder / "save"));
    CAPTURE(trained.error);
    CHECK(trained.status == 0);
    CHECK(contains(trained.out, "\nparam_hash "));
    std::filesystem::remove_all(folder / "save");
    CHECK(zerograd("plan" + run + std::to_string(needed)).status == 0);
    CHECK(zerograd("plan" + run + std::to_string(needed - 1)).status == 3);
  }
}

TEST_CASE("a drive that lacks a block is refused before step 0, one that just has room trains") {
  const std::string run =
      small_model + std::string("--offload-optimizer nvme ") + "--offload-param nvme --nvme-path ";
  const Outcome plan = zerograd("plan" + run + "/tmp");
  CHECK(plan.status == 0);
  const int64_t needed = bytes_after(plan.out, "\nfits /tmp: yes; 2 ranks take ");
  constexpr int64_t block = 4096;
  const SmallDisk exact(needed), short_of_one(needed - block);
  if (!exact.reason().empty()) return;
  const TemporaryFolder folder;
  const Outcome refused =
      zerograd("train" + run + short_of_one.path() + " --metrics " + (folder / "metrics"));
  CAPTURE(refused.error);
  CHECK(refused.status == 5);
  CHECK(refused.out.empty());
  CHECK(!contains(refused.error, "rank 0/2 pid"));
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK(contains(refused.error,
                 "error: FileError: --nvme-path: " + short_of_one.path() + " has too little room"));
  CHECK(bytes_after(refused.error, "2 ranks take ") == needed);
  CHECK(bytes_after(refused.error, "by plan, and ") == needed - block);
  CHECK(contains(refused.error, "; try another --nvme-path, or host instead of nvme"));
  const Outcome planned = zerograd("plan" + run + short_of_one.path());
  CHECK(planned.status == 5);
  CHECK(contains(planned.out, "\nfits " + short_of_one.path() + ": no; 2 ranks take "));
  CHECK(zerograd("train" + run + exact.path()).status == 0);
}

TEST_CASE("a model that no drive holds is refused at once") {
  // 46 TB of masters and moments.
  const std::string run =
      " --data sort --n-layer 48 --n-head 64 --n-embd 8192 --batch-size 1 --precision bf16 "
      "--ranks 100 --offload-optimizer nvme --nvme-path /tmp";
  const Outcome outcome = zerograd("train" + run);
  CAPTURE(outcome.error);
  CHECK(outcome.status == 5);
  CHECK(contains(outcome.error,
                 "error: FileError: --nvme-path: /tmp has too little room: 100 ranks take 4"));
  CHECK(zerograd("plan" + run).status == 5);
}

}  // namespace zg::testing
