#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "tests/tools/fake_programs.h"
#include "tools/launch/launcher.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"

namespace zg::testing {
namespace {

/// They print their own name and their words, a line each.
struct FakeMpirun : FakePrograms {
  FakeMpirun()
      : FakePrograms({"mpirun", "mpiexec.hydra", "srun"},
                     "basename $0\nfor word; do echo \"$word\"; done\n") {}
};

const std::string train_words = " train --data sort";

}  // namespace

TEST_CASE("launch passes the ranks of each host to mpirun, and to train its flags unchanged") {
  if (skips_mpi("launch")) return;
  const FakeMpirun fake;
  const std::string file = fake.hosts("# two\nworker-0 slots=4\n\nworker-1  slots=2  # small\n");
  struct Case {
    std::string flags, ranks, hosts;
  };
  for (const auto& [flags, ranks, hosts] :
       {Case{"--num_gpus 3", "3", "localhost:3"},
        Case{"--num_accelerators=2 --", "2", "localhost:2"},
        Case{"--hostfile " + file, "6", "worker-0:4,worker-1:2"},
        Case{"-H " + file + " --num_gpus -1 --num_nodes 1", "4", "worker-0:4"},
        Case{"--num_gpus 2 --hostfile " + file, "4", "worker-0:2,worker-1:2"},
        Case{"--hostfile " + file + " --include worker-1@worker-0:0,2", "4",
             "worker-1:2,worker-0:2"},
        Case{"--hostfile " + file + " -e worker-0:0,1,3", "3", "worker-0:1,worker-1:2"},
        Case{"--hostfile " + file + " --exclude worker-0", "2", "worker-1:2"}}) {
    CAPTURE(flags);
    const Outcome outcome = checked(zerograd("launch " + flags + train_words));
    CHECK(contains(outcome.out, "\n-np\n" + ranks + "\n--host\n" + hosts + "\n"));
    CHECK(contains(outcome.out, "\ntrain\n--data\nsort\n"));
  }
  if (mpi_version().starts_with("Open MPI"))
    CHECK(contains(zerograd("launch --hostfile " + file + train_words + " --comm-timeout 50").out,
                   "\noob_tcp_keepalive_time\n20\n--mca\noob_tcp_keepalive_intvl\n10\n"));
  const Outcome literal =
      zerograd({"launch", "--num_gpus", "1", "train", "--data", "$(touch x);a b"});
  CHECK(contains(literal.out, "\n$(touch x);a b\n"));
}

TEST_CASE("launch passes srun a hostfile's ranks, or leaves them to the allocation") {
  if (skips_mpi("launch")) return;
  const FakeMpirun fake;
  const std::string file = " --hostfile " + fake.hosts("a slots=2\nb slots=1\n");
  const std::string pmi = mpi_version().starts_with("Open MPI") ? "--mpi=pmix\n" : "--mpi=pmi2\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "/"},
      {" --num_nodes 3 --num_gpus 4", "--nodes=3\n--ntasks-per-node=4\n/"},
      {file, "--ntasks=3\n--distribution=arbitrary\n--nodelist=a,a,b\n/"},
      {file + " --exclude a:0", "--ntasks=2\n--distribution=arbitrary\n--nodelist=a,b\n/"}};
  for (const auto& [flags, words] : cases) {
    CAPTURE(flags);
    const Outcome outcome = checked(zerograd("launch --launcher slurm" + flags + train_words));
    CHECK(outcome.out.starts_with("srun\n--kill-on-bad-exit=1\n" + pmi + words));
  }
  checked(zerograd("launch --launcher slurm --include a" + train_words), 2);
}

TEST_CASE(
    "launcher_words gives each launcher's command, and launcher_of refuses one of another MPI") {
  using namespace tools;
  const Job job{.hosts = {{"a", {0, 1}}, {"b", {0}}}, .command = {"zerograd", "train"}};
  const auto words = [&](const std::string& name, const std::string& mpi) {
    return join(launcher_words(launcher_of(name, mpi), mpi, job), " ");
  };
  CHECK(words("", "MPICH 4.0.2") == "mpiexec.hydra -np 3 -hosts a:2,b:1 zerograd train");
  CHECK(contains(words("", "Open MPI 4.1.4"), "mpirun --oversubscribe --bind-to none"));
  CHECK(contains(words("openmpi", "Open MPI 4.1.4"), " -np 3 --host a:2,b:1 zerograd train"));
  CHECK(words("slurm", "MPICH 4.0.2").starts_with("srun --kill-on-bad-exit=1 --mpi=pmi2 "));
  // mpirun gives a lost host up about when the ranks would; there is none to lose but its own.
  for (const auto& [timeout, time, interval] :
       {std::tuple(60.0, "24", "12"), std::tuple(30.0, "12", "6"), std::tuple(2.0, "1", "1")}) {
    Job watched = job;
    watched.timeout_s = timeout;
    CHECK(contains(join(launcher_words(Launcher::openmpi, "Open MPI 4.1.4", watched), " "),
                   std::string(" --mca oob_tcp_keepalive_time ") + time +
                       " --mca oob_tcp_keepalive_intvl " + interval +
                       " --mca oob_tcp_keepalive_probes 2 -np 3 "));
    watched.hosts.pop_back();
    CHECK(!contains(join(launcher_words(Launcher::openmpi, "Open MPI 4.1.4", watched), " "),
                    "keepalive"));
  }
  CHECK_THROWS_AS(launcher_of("mpich", "Open MPI 4.1.4"), Unsupported);
  CHECK_THROWS_AS(launcher_of("slurm", ""), Unsupported);
  CHECK_THROWS_AS(launcher_of("pdsh", "Open MPI 4.1.4"), Unsupported);
  CHECK_THROWS_WITH_AS(launcher_of("slrum", "Open MPI 4.1.4"),
                       "--launcher: expected openmpi, mpich, slurm, got 'slrum'; did you mean "
                       "slurm?",
                       ConfigError);
}

TEST_CASE("launch starts nothing if the hostfile or the selection of hosts is invalid") {
  const FakeMpirun fake;
  const std::pair<const char*, const char*> files[] = {
      {"worker-0\n", ":1: expected 'host slots=N'"},
      {"a slots=1\nb slot=2\n", ":2: expected 'host slots=N'"},
      {"a slots=1 b\n", ":1: expected 'host slots=N'"},
      {"a slots=0\n", ":1: slots"},
      {"a slots=-3\n", ":1: slots"},
      {"a slots=99999999999\n", ":1: slots"},
      {"a slots=2\na slots=2\n", ":2: a comes twice"},
      {"# nothing\n", "got no host"},
      {"-oProxyCommand=touch slots=1\n", "a host's name"}};
  for (const auto& [text, expected] : files) {
    CAPTURE(text);
    check_refused("launch --hostfile " + fake.hosts(text) + train_words, 2, expected);
  }
  const std::string file = "--hostfile " + fake.hosts("a slots=2\nb slots=2\n");
  for (const char* flags : {"--include c", "--include a:2", "--include a@a", "--include a:",
                            "--include a --exclude b", "--exclude a@b", "--num_nodes 3",
                            "--num_gpus 3", "--include a --num_gpus 1", "--num_gpus 0"}) {
    CAPTURE(flags);
    CHECK(checked(zerograd("launch " + file + " " + flags + train_words), 2).out.empty());
  }
  checked(zerograd("launch --num_gpus 2"), 2);
  checked(zerograd("launch --num_gpus 2 eval x"), 2);
}

TEST_CASE("launch gives the hash of ranks as threads, and exits with 128 plus a signal's number") {
  if (skips_mpi("launch")) return;
  const std::string run = " train --data sort --steps 2 --batch-size 2 --score-samples 0 ";
  CHECK(hash_of("launch --num_gpus 2" + run) == hash_of(run + "--ranks 2"));
  for (const auto& [signal, status] :
       {std::pair(SIGTERM, 143), std::pair(SIGINT, 130), std::pair(SIGHUP, 129)}) {
    const TemporaryFolder folder;
    checked(zerograd_signalled("launch --num_gpus 2" + run +
                                   "--steps 1000000 --batch-size 64 --log-interval 1 --save " +
                                   folder / "s",
                               "iter 3:", signal),
            status);
  }
}

TEST_CASE("ranks of a launch save before it ends, however soon mpirun would kill them") {
  if (skips_mpi("launch")) return;
  setenv("OMPI_MCA_odls_base_sigkill_timeout", "0", 1);  // at once after SIGTERM
  for (const int signal : {SIGTERM, SIGINT}) {
    const TemporaryFolder folder;
    const std::string save = folder / "saved";
    const Outcome outcome = checked(
        zerograd_signalled("launch --num_gpus 2 train --data sort --batch-size 2 --steps 1000000 "
                           "--score-samples 0 --log-interval 1 --save " +
                               save,
                           "iter 3:", signal),
        128 + signal);
    CHECK(contains(outcome.error, "interrupted by SIGTERM"));
    CHECK(checked(zerograd("verify " + save)).out.find("step_") != std::string::npos);
  }
  unsetenv("OMPI_MCA_odls_base_sigkill_timeout");
}

TEST_CASE("when launch or a supervisor is killed, the processes that it started save and end") {
  // Steps that are not too short: while mpirun waits to kill the ranks it does not read what they
  // print, and a rank that waits for it cannot save.
  const std::string run =
      "train --data sort --batch-size 512 --steps 1000000 --score-samples 0 --log-interval 1 "
      "--save ";
  std::vector<std::string> starts = {"--max-restarts 1 "};
  if (missing_mpi().empty()) starts.emplace_back("launch");
  // mpirun sends SIGKILL so many seconds after SIGTERM, by default one: too few on busy cores.
  setenv("OMPI_MCA_odls_base_sigkill_timeout", "3", 1);
  for (const std::string& start : starts) {
    const TemporaryFolder folder;
    const std::string save = folder / "saved";
    CAPTURE(start);
    const Outcome outcome =
        checked(zerograd_signalled(start == "launch" ? "launch --num_gpus 2 " + run + save
                                                     : run + save + " --ranks 2 " + start,
                                   "iter 3:", SIGKILL),
                128 + SIGKILL);  // its own; the pipe is closed once all have ended
    CHECK(contains(outcome.error, "interrupted by SIGTERM"));
    CHECK(!std::filesystem::is_empty(save));
  }
  unsetenv("OMPI_MCA_odls_base_sigkill_timeout");
}

}  // namespace zg::testing
