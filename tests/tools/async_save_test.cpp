#include <csignal>
#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

namespace fs = std::filesystem;

const std::string async_run =
    "train --data sort --score-samples 0 --threads 1 --log-interval 0 --n-layer 2 --n-head 1 "
    "--n-embd 64 --batch-size 1 --train-batch-size 8 ";

}  // namespace

TEST_CASE(
    "train --async-save changes no bit, and its checkpoints continue on other numbers of ranks") {
  const TemporaryFolder folder, disk;
  const std::string whole = hash_of(zerograd(async_run + "--steps 9"));
  int runs = 0;
  const auto check = [&](const std::string& setting, Outcome (*start)(const std::string&)) {
    CAPTURE(setting);
    const std::string save = folder / std::to_string(runs++);
    const Outcome outcome = start(setting +
                                  " --steps 9 --save-top-k -1 --save-interval 2 "
                                  "--async-save --save " +
                                  save);
    CHECK(hash_of(outcome) == whole);
    for (const int step : {2, 4, 6, 8, 9}) {
      const std::string path = save + "/step_" + std::to_string(step);
      CHECK(contains(outcome.out, "saved " + path + "\n"));
      checked(zerograd("verify " + path));
      // One of the checkpoints of each setting, on another number of ranks.
      const int index = step / 2 - 1;
      if (step == 9 || index != runs % 4) continue;
      CHECK(hash_of(zerograd("train --score-samples 0 --log-interval 0 --threads 1 --batch-size 1 "
                             "--offload-param none --offload-optimizer none "
                             "--train-batch-size 8 --ranks " +
                             std::to_string(1 << index) + " --zero-stage " + std::to_string(index) +
                             " --resume " + path)) == whole);
    }
    CHECK(std::distance(fs::directory_iterator(save), {}) == 6);  // and latest
  };
  const auto threads = [](const std::string& line) { return zerograd(line); };
  const std::string nvme = " --nvme-path " + disk.path();
  check(async_run, threads);
  check(async_run + "--ranks 2 --zero-stage 3", threads);
  check(async_run + "--ranks 4 --zero-stage 1 --offload-optimizer host", threads);
  check(async_run + "--ranks 2 --zero-stage 3 --offload-param nvme --offload-optimizer nvme" + nvme,
        threads);
  check(async_run + "--zero-stage 1 --offload-optimizer nvme" + nvme, threads);
  if (skips_mpi("--async-save")) return;
  check("-np 2 zerograd " + async_run + "--zero-stage 2",
        [](const std::string& line) { return mpirun(line); });
}

TEST_CASE(
    "train --async-save finishes a checkpoint soon after its step, not only when the next save "
    "begins") {
  const TemporaryFolder folder;
  const Outcome outcome = checked(
      zerograd_signalled(
          "train --data sort --batch-size 2 --score-samples 0 --threads 1 --n-layer 1 --n-head 1 "
          "--n-embd 16 --log-interval 3999 --steps 100000000 --ranks 2 --zero-stage 1 "
          "--save-interval 2000 --async-save --save " +
              folder.path(),
          "saved " + (folder / "step_2000\n"), SIGTERM),
      128 + SIGTERM);
  CHECK(!contains(outcome.out, "iter 3999"));
  checked(zerograd("verify " + folder.path()));
}

TEST_CASE(
    "when a rank fails during --async-save, finished checkpoints stay and all that remain verify") {
  const TemporaryFolder folder;
  for (const std::string fault : {"throw", "kill", "return"}) {
    const std::string save = folder / fault;
    const Outcome outcome =
        zerograd(async_run +
                 "--ranks 2 --zero-stage 2 --steps 9 --save-interval 2 --async-save "
                 "--save-top-k -1 --inject rank=1,step=6,fault=" +
                 fault + " --save " + save);
    CAPTURE(outcome.error);
    CHECK(outcome.status != 0);
    for (const auto& entry : fs::directory_iterator(save))
      if (entry.path().filename().string().starts_with("step_"))
        checked(zerograd("verify " + entry.path().string()));
    CHECK(fs::exists(save + "/step_4"));  // before the one that was under way
  }
}

}  // namespace zg::testing
