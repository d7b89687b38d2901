#include <algorithm>
#include <csignal>
#include <sstream>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

const std::string failing_run =
    "train --data sort --steps 9 --batch-size 2 --score-samples 0 --log-interval 0 --threads 1 "
    "--zero-stage 2 ";

std::vector<std::string> lines_with(const std::string& text, const std::string& part) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);)
    if (contains(line, part)) lines.push_back(line);
  return lines;
}

void check_dump(const std::string& error) {
  CAPTURE(error);
  for (const char* rank : {"rank 0/2", "rank 1/2"}) {
    CHECK(lines_with(error, std::string(rank) + " made ").size() == 1);
    const auto lines = lines_with(error, std::string(rank) + " collective #");
    REQUIRE(lines.size() == 64);  // the 64 last collectives of each rank
    CHECK(std::ranges::all_of(lines, [](const std::string& line) {
      return contains(line, " elements), in step ") && contains(line, "; ms: queued ");
    }));
    CHECK(contains(lines[50], ": done; ms: queued "));
  }
  // The rank that failed has finished all it began; the other one waits for it.
  CHECK(lines_with(error, ": started; ms: queued ").size() == 1);
  CHECK(contains(error, "in step 7: started; ms: queued "));
}

}  // namespace

TEST_CASE(
    "collectives: with --dump-collectives each rank lists its last 64 collectives after a "
    "failure") {
  const std::string drill = failing_run + "--inject rank=1,step=7,fault=throw ";
  check_dump(checked(zerograd(drill + "--ranks 2 --dump-collectives"), 1).error);
  const Outcome silent = zerograd(drill + "--ranks 2");
  CHECK(lines_with(silent.error, "ms: queued").empty());
  CHECK(lines_with(zerograd(failing_run + "--ranks 2 --dump-collectives").error, "queued").empty());
  if (skips_mpi("lists of processes")) return;
  check_dump(mpirun("-np 2 zerograd " + drill + "--dump-collectives").error);
}

TEST_CASE("restarts: a run that fails goes on from its last checkpoint and gives the same bits") {
  const std::string run = failing_run + "--ranks 2 ";
  const TemporaryFolder folder;
  const auto outputs = [&](const std::string& name) {
    return "--save-interval 2 --save-top-k -1 --save " + folder / name + " --metrics " +
           folder / (name + ".jsonl ");
  };
  const std::string hash = hash_of(run + outputs("whole"));
  const auto steps_of = [&](const std::string& name) {
    std::vector<nlohmann::json> records = json_lines(folder / (name + ".jsonl"));
    for (nlohmann::json& record : records)
      for (const char* own : {"tokens_per_s", "step_s", "wire_bytes", "resumed"}) record.erase(own);
    return records;
  };
  const struct {
    const char *fault, *steps, *ended;
  } faults[] = {{"throw", "1+5", "status 1 (an error)"}, {"stall", "5", "status 4 (CommError)"}};
  for (const auto& [fault, steps, ended] : faults) {
    CAPTURE(fault);
    const Outcome outcome =
        checked(zerograd(run + outputs(fault) + "--max-restarts 2 --comm-timeout 10 --inject " +
                         "rank=1,step=" + steps + ",fault=" + fault));
    CHECK(line_after(outcome.out, "param_hash ") == hash);
    const std::string last = std::string(steps) == "5" ? "1" : "2",
                      why = " of 2: the run ended with ";
    CHECK(contains(outcome.error,
                   "\nrestart 1" + why + ended + "; nothing was saved yet, so it begins again\n") ==
          (last == "2"));
    CHECK(contains(outcome.error, "\nrestart " + last + why + ended + "; it goes on from " +
                                      folder / fault + "/step_4\n"));
    CHECK(steps_of(fault) == steps_of("whole"));
  }
  const Outcome once = checked(
      zerograd(run + outputs("once") + "--max-restarts 1 --inject rank=0,step=3+5,fault=throw"), 1);
  CHECK(
      contains(once.error, "\nno restart is left of 1: the run ended with status 1 (an error)\n"));
}

TEST_CASE(
    "restarts: a run that ends by a signal or an error of usage, files or memory is not "
    "restarted") {
  const TemporaryFolder folder;
  const std::string run = failing_run + "--max-restarts 3 --save " + folder / "s ";
  for (const auto& [flags, status] :
       {std::pair("--device-memory 1KiB", 3), std::pair("--dropout 2", 2),
        std::pair("--ranks 3 --train-batch-size 7", 2), std::pair("--resume /nowhere", 5)}) {
    CAPTURE(flags);
    CHECK(!contains(checked(zerograd(run + flags), status).error, "restart "));
  }
  // It cannot learn. Before, three restarts came to the same step.
  const Outcome bad = checked(zerograd(run + "--lr 1e30 --steps 9 --max-bad-steps 2"), 1);
  CHECK(contains(bad.error, "error: Error: trainer: 2 steps in a row taught nothing"));
  CHECK(!contains(bad.error, "restart "));
#if !defined(__SANITIZE_THREAD__)  // it delays the signal until the supervisor's waitpid() returns
  const Outcome ended = checked(
      zerograd_signalled(run + "--steps 1000000 --log-interval 1", "iter 3:", SIGTERM), 143);
  CHECK(contains(ended.out, "saved "));
  CHECK(!contains(ended.error, "restart "));
#endif
  check_refused(failing_run + "--max-restarts 1", 2, "--max-restarts: expected --save DIR");
}

TEST_CASE(
    "restarts: launch starts the processes again, and under mpirun alone --max-restarts is "
    "refused") {
  if (skips_mpi("restarts")) return;
  const TemporaryFolder folder;
  const std::string run =
      failing_run + "--save-interval 2 --save-top-k -1 --max-restarts 1 --save " + folder / "s ";
  const Outcome outcome =
      checked(zerograd("launch --num_gpus 2 " + run + "--inject rank=1,step=5,fault=throw"));
  CHECK(contains(outcome.error, "\nrestart 1 of 1: the run ended with status "));
  CHECK(contains(outcome.error, "; it goes on from " + folder / "s/step_4\n"));
  CHECK(line_after(outcome.out, "param_hash ") == hash_of(failing_run + "--ranks 2"));
  const Outcome bare = checked(
      mpirun("-np 2 zerograd " + failing_run + "--max-restarts 1 --save " + folder / "t"), 2);
  CHECK(contains(bare.error, "--max-restarts: expected a run that this process can start again"));
  CHECK(contains(bare.error, "try zerograd launch"));
}

}  // namespace zg::testing
