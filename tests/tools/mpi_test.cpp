#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

const std::string mpi_run =
    "train --data sort --steps 3 --train-batch-size 16 --batch-size 2 --score-samples 0 "
    "--log-interval 0 --threads 1 ";

/// A run that lasts until something stops it.
const std::string long_run =
    "train --data sort --steps 1000000 --model-type gpt-nano --batch-size 2 --score-samples 0 "
    "--log-interval 1 --threads 1 --zero-stage 2 --comm-timeout 15 ";

std::string started(int processes, const std::string& line) {
  return "-np " + std::to_string(processes) + " zerograd " + line;
}

/// Metrics without the times of a run.
std::vector<nlohmann::json> steps_of(const std::string& path) {
  std::vector<nlohmann::json> records = json_lines(path);
  for (nlohmann::json& record : records)
    for (const char* timed : {"tokens_per_s", "step_s"}) record.erase(timed);
  return records;
}

}  // namespace

TEST_CASE("mpi: processes give the same output, metrics, gradients and memory record as threads") {
  if (skips_mpi("same bits")) return;
  struct Case {
    int ranks;
    const char* flags;
  };
  for (const auto& [ranks, flags] :
       {Case{2, "--zero-stage 0"},
        Case{4, "--zero-stage 2 --precision bf16 --reduce-bucket-size 999 --overlap-comm off"},
        Case{4, "--zero-stage 3 --param-persistence-threshold 0"}}) {
    INFO("ranks ", ranks, ", ", std::string(flags));
    const TemporaryFolder folder;
    const std::string run = mpi_run + flags + " --dump-gradients " + folder / "gradients";
    const auto outputs = [&](const std::string& name) {
      return " --metrics " + folder / (name + ".metrics") + " --memory-json " +
             folder / (name + ".memory");
    };
    const std::string asked = " --ranks " + std::to_string(ranks);
    const Outcome threads = zerograd(run + "_threads" + asked + outputs("threads"));
    // --ranks may be omitted.
    const Outcome processes = mpirun(
        started(ranks, run + "_processes" + (ranks == 4 ? asked : "") + outputs("processes")));
    CAPTURE(processes.error);
    REQUIRE(threads.status == 0);
    REQUIRE(processes.status == 0);
    CHECK(line_after(processes.out, "param_hash ") == line_after(threads.out, "param_hash "));
    CHECK(processes.out == threads.out);
    CHECK(steps_of(folder / "processes.metrics") == steps_of(folder / "threads.metrics"));
    CHECK(read_file(folder / "gradients_processes") == read_file(folder / "gradients_threads"));
    const std::string record = read_file(folder / "processes.memory");
    CHECK(record == read_file(folder / "threads.memory"));
    checked(zerograd("plan" + run.substr(5, run.find(" --dump") - 5) + asked +
                     " --dump-gradients x --memory-json " + folder / "plan"));
    CHECK(record == read_file(folder / "plan"));
  }
}

TEST_CASE(
    "mpi: after a signal to one rank all save and end, and the run continues to the same hash") {
  if (skips_mpi("signals")) return;
  for (const auto& [signal, status] : {std::pair(SIGTERM, 143), std::pair(SIGHUP, 129)}) {
    const TemporaryFolder folder;
    const std::string save = folder / "checkpoints";
    const std::string run = long_run + "--comm-timeout 240 ";
    const Outcome outcome = checked(
        mpirun_signalled(started(2, run + "--save " + save), "iter 3:", "1/2", signal), status);
    const std::string saved = line_after(outcome.out, "saved " + save + "/step_");
    REQUIRE(!saved.empty());
    const std::string steps = " --steps " + std::to_string(std::stoi(saved) + 2);
    const std::string rest = "train --score-samples 0 --resume " + save + steps;
    CHECK(line_after(checked(mpirun(started(2, rest))).out, "param_hash ") ==
          hash_of(long_run + "--log-interval 0 --ranks 2" + steps));
  }
}

TEST_CASE(
    "mpi: with --save-top-k 1 four processes keep at most the best and the newest checkpoint") {
  if (skips_mpi("--save-top-k")) return;
  const TemporaryFolder folder;
  const std::string save = folder / "checkpoints";
  checked(mpirun(started(4,
                         "train --data sort --steps 9 --batch-size 2 --n-layer 1 --n-head 1 "
                         "--n-embd 16 --score-samples 0 --log-interval 0 --threads 1 "
                         "--save-interval 1 --save-top-k 1 --save " +
                             save)));
  CHECK(std::distance(std::filesystem::directory_iterator(save), {}) <= 3);  // best, newest, latest
}

TEST_CASE(
    "mpi: a signal while a peer is stalled saves nothing, and the error names what was pending") {
  if (skips_mpi("signals")) return;
  struct Case {
    const char* who;
    const char* cause;
  };
  // mpirun sends SIGKILL some seconds after SIGTERM. A signal to a rank leaves it the whole
  // timeout.
  for (const auto& [who, cause] :
       {Case{"0/2", "rank 1 did not arrive within 15 s: collective #"},
        Case{"mpirun", "rank 1 did not arrive before the launcher ended the run: collective #"}}) {
    CAPTURE(who);
    const TemporaryFolder folder;
    const std::string save = folder / "checkpoints";
    const Outcome outcome = mpirun_signalled(
        "--mca odls_base_sigkill_timeout 4 " +
            started(2,
                    long_run + "--inject rank=1,step=1,fault=stall,phase=forward --save " + save),
        // Rank 0 stops before the stalled step if the signal comes between the steps.
        "iter 0:", who, SIGTERM, std::chrono::milliseconds(500));
    CAPTURE(outcome.error);
    CHECK(outcome.status == (std::string(who) == "mpirun" ? 1 : 4));
    CHECK(contains(outcome.error, std::string("error: CommError: rank 0/2 ends: ") + cause));
    CHECK(contains(outcome.error, ", reduce_scatter of 'head gradients' (f32, "));
    CHECK(!contains(outcome.out, "saved"));
    CHECK(std::filesystem::is_empty(save));
  }
}

TEST_CASE("mpi: ranks with different settings, programs or data end before step 0") {
  if (skips_mpi("agreement")) return;
  const TemporaryFolder folder;
  const std::string run = "zerograd " + mpi_run, program = folder / "zerograd";
  // The same program with one unused byte more.
  write_file(program, read_file(ZG_COMMAND) + "x");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  // Files with equal names, sizes and characters.
  const auto in = [&](const std::string& host, const std::string& words) {
    std::filesystem::create_directory(folder / host);
    std::string text;
    for (int i = 0; i < 100; ++i) text += words;
    write_file(folder / (host + "/text.txt"), text);
    return "-wdir " + folder / host + " zerograd train --data text.txt --block-size 8 --steps 1 " +
           "--batch-size 2 --log-interval 0 --threads 1";
  };
  const std::string first = in("a", "to be or not "), second = in("b", "not to be or ");
  const struct {
    std::string first, second;
    const char* differs;
  } cases[] = {{run, run + "--lr 1e-3", "the settings"},
               {run + "--memory-json " + (folder / "memory"), run, "the course"},
               {run + "--bits fast", "env ZG_CPU_ISA=portable " + run + "--bits fast",
                "the instruction set"},
               {run, program + " " + mpi_run, "the program"},
               {first, second, "the data"}};
  for (const auto& [first, second, differs] : cases) {
    CAPTURE(differs);
    const Outcome outcome = checked(mpirun("-np 1 " + first + " : -np 1 " + second), 2);
    CHECK(contains(outcome.error, std::string("error: ConfigError: ranks differ before step 0: ") +
                                      differs + " of rank 1"));
    CHECK(!contains(outcome.out, "iter"));
  }
  const auto errors_of = [](const Outcome& outcome) {
    size_t count = 0;
    for (size_t at = 0; (at = outcome.error.find("error: ConfigError: ", at)) != std::string::npos;
         ++at)
      ++count;
    return count;
  };
  const Outcome three = checked(mpirun(started(2, mpi_run + "--ranks 3")), 2);
  CHECK(contains(three.error, "error: ConfigError: --ranks: expected the 2 processes"));
  CHECK(errors_of(three) == 1);
  // An error that one rank alone has, the one that is not 0, and different errors are all printed.
  const Outcome alone = checked(mpirun("-np 1 " + run + " : -np 1 " + run + "--ranks 3"), 2);
  CHECK(errors_of(alone) == 1);
  const Outcome both =
      checked(mpirun("-np 1 " + run + "--ranks 4 : -np 1 " + run + "--ranks 3"), 2);
  CHECK(errors_of(both) == 2);
}

TEST_CASE("WORLD_SIZE above 1 without MPI is refused, as each process would train alone") {
  const auto with = [](const std::vector<std::pair<const char*, const char*>>& variables) {
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    const Outcome outcome = zerograd(mpi_run);
    for (const auto& [name, value] : variables) unsetenv(name);
    return outcome;
  };
  for (const auto& four : {with({{"WORLD_SIZE", "4"}}),
                           with({{"WORLD_SIZE", "4"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}})}) {
    CHECK(four.status == 2);
    CHECK(
        contains(four.error, "error: ConfigError: WORLD_SIZE: expected processes that MPI starts"));
    CHECK(contains(four.error, "launch"));
  }
  CHECK(with({{"WORLD_SIZE", "1"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}}).status == 0);
}

}  // namespace zg::testing
