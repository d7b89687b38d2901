#include <algorithm>
#include <csignal>
#include <filesystem>
#include <future>

#include "tests/support/temporary_folder.h"
#include "tests/support/wait_until.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

const std::string signalled_run =
    "train --data sort --batch-size 2 --score-samples 0 --threads 1 --n-layer 2 --n-head 2 "
    "--n-embd 16 --log-interval 1 ";

/// As nohup starts a process: SIGHUP is ignored in what this one starts.
class IgnoredHangup {
 public:
  IgnoredHangup() : before_(std::signal(SIGHUP, SIG_IGN)) {}
  ~IgnoredHangup() { std::signal(SIGHUP, before_); }
  IgnoredHangup(const IgnoredHangup&) = delete;

 private:
  void (*before_)(int);
};

}  // namespace

TEST_CASE("a signal saves and exits with 128 plus its number, and resuming gives the same bits") {
  const TemporaryFolder folder;
  const std::string save = folder / "checkpoints";
  const std::string run =
      "train --data sort --batch-size 16 --score-samples 0 --log-interval 1 --steps ";
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    std::filesystem::remove_all(save);
    const Outcome outcome = checked(
        zerograd_signalled(run + "1000000 --save " + save, "iter 3:", signal), 128 + signal);
    CHECK(contains(outcome.error, signal == SIGHUP ? "interrupted by SIGHUP" : "interrupted by "));
    CHECK(contains(outcome.error, "steps; saving, a second signal ends that too\n"));
    CHECK(contains(outcome.error, "go on with: --resume " + save + " --save " + save + "\n"));
    const std::string saved = line_after(outcome.out, "saved ");
    REQUIRE(!saved.empty());
    const int64_t steps = std::stoll(saved.substr(saved.rfind('_') + 1)) + 2;
    const std::string length = std::to_string(steps);
    CHECK(hash_of(run + length + " --resume " + save) == hash_of(run + length));
  }
}

TEST_CASE("a signal before the end of the first step ends a run at once, and nothing is saved") {
  for (const auto& [signal, flags] :
       {std::pair(SIGINT, ""), std::pair(SIGTERM, "--ranks 2 "),
        std::pair(SIGHUP, "--max-restarts 1 "), std::pair(SIGTERM, "--max-restarts 1 ")}) {
    INFO("signal ", signal, ", flags ", std::string(flags));
    const TemporaryFolder folder;
    const std::string save = folder / "checkpoints";
    // A step that would take minutes.
    const Outcome outcome = checked(
        zerograd_signalled(signalled_run + flags + "--steps 2 --grad-accum 1000000 --save " + save,
                           "number of parameters", signal),
        128 + signal);
    CHECK(!contains(outcome.error, "interrupted by"));
    CHECK(!contains(outcome.error, "restart "));
    CHECK(std::filesystem::is_empty(save));
  }
}

TEST_CASE(
    "a signal within a step stops all ranks before the same micro-batch, and that step is not "
    "taken") {
  struct Case {
    int micro_batches;  // enough for a step of a tenth of a second
    std::string flags;
    double share = 0.0;  // fraction of the step's time that passes before the signal
  };
  for (const auto& [micro_batches, flags, share] :
       {Case{350, "--precision f16 --cpu-offload --offload-activations host "},
        Case{125, "--ranks 3 --zero-stage 3 --param-persistence-threshold 0 "},
        Case{75, "--ranks 4 --pipeline-parallel 2 --tensor-parallel 2 --tied "},
        // GPipe: in the backward passes, which begin after a third.
        Case{400,
             "--ranks 2 --pipeline-parallel 2 --schedule-pipeline gpipe --zero-stage 3 "
             "--offload-activations host ",
             0.5}}) {
    INFO("flags ", flags, ", share ", share);
    const TemporaryFolder folder;
    const std::string save = folder / "checkpoints";
    const std::string run =
        signalled_run + "--grad-accum " + std::to_string(micro_batches) + " " + flags;
    // A signal behind the last micro-batch of a step lets it end, so that the next try decides.
    SignalledStep signalled{};
    std::string steps;
    for (int tries = 0; tries < 5; ++tries) {
      std::filesystem::remove_all(save);
      signalled = zerograd_signalled_within_step(run + "--steps 1000000 --save " + save,
                                                 "iter 0:", SIGTERM, share);
      steps = std::to_string(signalled.steps);
      if (contains(signalled.outcome.error, "after " + steps + " steps")) break;
    }
    CAPTURE(signalled.outcome.error);
    CHECK(signalled.outcome.status == 143);
    CHECK(contains(signalled.outcome.error, "interrupted by SIGTERM after " + steps + " steps"));
    CHECK(line_after(signalled.outcome.out, "saved ") == save + "/step_" + steps);
    const std::string length = "--steps " + std::to_string(signalled.steps + 1);
    CHECK(hash_of(run + length + " --resume " + save) == hash_of(run + length));
  }
}

TEST_CASE("a signal during validation or a sample stops it, and the step before it is saved") {
  for (const char* flags : {"--eval-interval 1 --eval-batches 0 ", "--sample-interval 1 "}) {
    CAPTURE(flags);
    const TemporaryFolder folder;
    const std::string save = folder / "checkpoints", text = folder / "text.txt";
    std::string letters;
    for (int i = 0; i < 200000; ++i) letters += static_cast<char>('a' + (i % 23) * (i % 23) % 23);
    write_file(text, letters);
    // Validation reads 60000 windows, a sample draws 200 tokens from a wide model.
    const std::string run = "train --data " + text +
                            " --batch-size 1 --threads 1 --n-layer 1 --n-head 1 --n-embd 1024 "
                            "--block-size 16 --val-fraction 0.3 --log-interval 1 --steps 3 ";
    const Outcome outcome = checked(
        zerograd_signalled(run + flags + "--ranks 2 --save " + save, "iter 0:", SIGTERM), 143);
    CHECK(contains(outcome.error, "interrupted by SIGTERM after 1 steps"));
    CHECK(!contains(outcome.out, "val loss"));
    CHECK(!contains(outcome.out, "sample after"));
    CHECK(line_after(outcome.out, "saved ") == save + "/step_1");
  }
}

// `timeout` sends a signal to the process and to its group. Two signals that are pending at the
// same time are delivered once.
TEST_CASE("a signal that comes twice at once does not keep a run from saving") {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const TemporaryFolder folder;
    const std::string line = signalled_run + "--steps 1000000 --save " + (folder / "checkpoints");
    const Outcome outcome =
        checked(zerograd_signalled(line, "iter 3:", signal, 200), 128 + SIGTERM);
    CHECK(!line_after(outcome.out, "saved ").empty());
  }
}

TEST_CASE("a signal during the final scores of a saved run ends the run") {
  const TemporaryFolder folder;
  const Outcome outcome =
      checked(zerograd_signalled(
                  "train --data sort --steps 2 --batch-size 2 --score-samples 1000000 --save " +
                      (folder / "checkpoints"),
                  "saved ", SIGINT),
              128 + SIGINT);
  CHECK(!contains(outcome.out, "param_hash"));
}

TEST_CASE("SIGHUP that is ignored at the start stays ignored, also in the run of a supervisor") {
  const TemporaryFolder folder;
  const IgnoredHangup ignored;
  for (const char* flags : {"", "--max-restarts 1 "}) {
    CAPTURE(flags);
    const std::string save = folder / (*flags ? "restarts" : "alone");
    checked(zerograd_signalled(signalled_run + flags + "--steps 1000 --save " + save,
                               "iter 3:", SIGHUP));
    CHECK(std::filesystem::is_directory(save + "/step_1000"));
  }
}

#if !defined(__SANITIZE_THREAD__)  // it delays the signal until the supervisor's waitpid() returns
TEST_CASE("a supervisor passes SIGHUP to its run, which saves and is not restarted") {
  const TemporaryFolder folder;
  const std::string save = folder / "checkpoints";
  const Outcome outcome =
      checked(zerograd_signalled(signalled_run + "--max-restarts 3 --steps 1000000 --save " + save,
                                 "iter 3:", SIGHUP),
              129);
  CHECK(contains(outcome.error, "interrupted by SIGHUP"));
  CHECK(!contains(outcome.error, "restart "));
  CHECK(!line_after(outcome.out, "saved ").empty());
}
#endif

TEST_CASE("a supervisor and its run are named zerograd in process lists") {
  const TemporaryFolder folder;
  const std::string stop = folder / "stop", metrics = folder / "metrics";
  auto run = std::async(std::launch::async, [&] {
    return zerograd(signalled_run + "--steps 1000000 --max-restarts 1 --kill-switch-path " + stop +
                    " --metrics " + metrics + " --save " + (folder / "checkpoints"));
  });
  std::vector<Process> found;
  const auto is_seen = [&] {
    found = processes_with(stop);
    return found.size() == 2 && std::ranges::all_of(found, [](const Process& process) {
             return process.name == "zerograd";
           });
  };
  wait_until(is_seen, "both processes are called zerograd");
  // A run refuses to start if the file is there.
  wait_until(
      [&] { return std::filesystem::exists(metrics) && std::filesystem::file_size(metrics) > 0; },
      "the run has trained");
  write_file(stop, "");
  CHECK(run.get().status == 0);
  REQUIRE(found.size() == 2);
  for (const Process& process : found) {
    CHECK(process.name == "zerograd");
    const std::string first_word =
        process.command_line.substr(0, process.command_line.find('\0'));  // words end with \0
    CHECK(std::filesystem::path(first_word).filename() == "zerograd");
  }
}

}  // namespace zg::testing
