#include "zerograd/runtime/comm/processes.h"

#include <omp.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>

#include "tests/support/error_message.h"
#include "zerograd/runtime/comm/process_id.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/error.h"

namespace zg::testing {
namespace {

using Variables = std::map<std::string, std::string>;

/// While it lives, exactly these launcher variables are set.
class Launched {
 public:
  explicit Launched(const Variables& variables) {
    for (const char* name :
         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALRANKID",
          "MPI_LOCALNRANKS", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
          "SLURM_STEP_TASKS_PER_NODE", "ZG_NUM_THREADS", "OMP_NUM_THREADS"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      names_.emplace_back(name);
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Launched() {
    for (const std::string& name : names_) unsetenv(name.c_str());
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::vector<std::string> names_;
  Variables before_;
};

/// The result of f in a child process. The parent has the cores of this process.
template <class F>
int in_child(const F& f) {
  const pid_t child = fork();
  if (child == 0) _exit(f());
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

}  // namespace

TEST_CASE(
    "processes: process_rank reads global and local rank and size from each launcher's variables") {
  struct Case {
    Variables variables;
    int rank, size, local_rank, local_size;
  };
  const std::vector<Case> cases = {
      {{{"OMPI_COMM_WORLD_RANK", "5"},
        {"OMPI_COMM_WORLD_SIZE", "8"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
       5,
       8,
       1,
       4},
      // MPICH
      {{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}},
       2,
       4,
       0,
       2},
      {{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}, 2, 4, 2, 4},
      // srun --mpi=pmi2, in an allocation with more tasks than the step
      {{{"PMI_RANK", "1"},
        {"PMI_SIZE", "3"},
        {"SLURM_NTASKS", "9"},
        {"SLURM_LOCALID", "1"},
        {"SLURM_STEP_TASKS_PER_NODE", "2,1"}},
       1,
       3,
       1,
       2},
      // srun --mpi=pmix
      {{{"PMIX_RANK", "6"},
        {"SLURM_STEP_NUM_TASKS", "11"},
        {"SLURM_NTASKS", "16"},
        {"SLURM_LOCALID", "2"},
        {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}},
       6,
       11,
       2,
       4},
      {{{"PMIX_RANK", "1"}, {"SLURM_NTASKS", "2"}}, 1, 2, 1, 2}};
  for (const Case& one : cases) {
    CAPTURE(one.variables.begin()->first);
    const Launched launched(one.variables);
    const auto place = process_rank();
    REQUIRE(place);
    CHECK(place->rank == one.rank);
    CHECK(place->size == one.size);
    CHECK(place->local_rank == one.local_rank);
    CHECK(place->local_size == one.local_size);
  }
}

TEST_CASE(
    "processes: incomplete launcher variables mean no rank, and invalid numbers are an error") {
  for (const Variables& none : {Variables{}, Variables{{"SLURM_NTASKS", "4"}},
                                Variables{{"PMI_RANK", "0"}}, Variables{{"PMI_SIZE", "2"}}}) {
    const Launched launched(none);
    CHECK(!process_rank());
  }
  for (const char* rank : {"two", "-1", "1x", "4"}) {
    CAPTURE(std::string(rank));
    const Launched launched({{"PMI_RANK", rank}, {"PMI_SIZE", "4"}});
    CHECK_THROWS_AS(process_rank(), ConfigError);
  }
  const Launched launched(
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"SLURM_STEP_TASKS_PER_NODE", "4 and 3"}});
  CHECK_THROWS_AS(process_rank(), ConfigError);
}

TEST_CASE(
    "processes: the processes of a host share its cores, and one bound to a core uses one thread") {
  const Launched none(Variables{});
  const int cores = available_cores();
  for (const int processes : {0, 1, 2, 3, cores, 2 * cores + 1}) {
    CAPTURE(processes);
    CHECK(in_child([&] { return threads_per_process(processes); }) ==
          std::max(1, cores / std::max(1, processes)));
    CHECK(in_child([&] {
            cpu_set_t all, one;
            sched_getaffinity(0, sizeof all, &all);
            CPU_ZERO(&one);
            int core = 0;
            while (!CPU_ISSET(core, &all)) ++core;
            CPU_SET(core, &one);
            sched_setaffinity(0, sizeof one, &one);
            return threads_per_process(processes);
          }) == 1);
  }
}

TEST_CASE(
    "ZG_NUM_THREADS, else the number of OpenMP, sets the threads of a rank where no option does") {
  const Launched none(Variables{});
  const int cores = available_cores();
  const std::pair<Variables, int> cases[] = {
      {{{"ZG_NUM_THREADS", "3"}}, 3},
      {{{"ZG_NUM_THREADS", "0"}}, cores + 3},
      {{{"OMP_NUM_THREADS", "any"}}, cores + 3}};  // read by libgomp, when it is loaded
  const int threads_before = omp_get_max_threads();
  omp_set_num_threads(cores + 3);
  for (const auto& [variables, threads] : cases) {
    const Launched launched(variables);
    CAPTURE(variables.begin()->first + "=" + variables.begin()->second);
    CHECK(Device::cpu(0, {.separate = true}).traits().threads == threads);
    CHECK(Device::cpu(0, {.threads = 2, .separate = true}).traits().threads == 2);
    CHECK(threads_per_rank(4 * cores) == threads);
    CHECK(threads_per_process(4 * cores) == threads);
  }
  omp_set_num_threads(threads_before);
  {
    const Launched launched(Variables{{"OMP_NUM_THREADS", "any"}});
    CHECK(threads_per_rank(4 * cores) == threads_before);
  }
  CHECK(threads_per_rank(4 * cores) == 1);
  for (const char* number : {"two", "-1", "3x", "4097"}) {
    CAPTURE(std::string(number));
    const Launched launched(Variables{{"ZG_NUM_THREADS", number}});
    CHECK(zg::testing::contains(
        zg::testing::message_of<ConfigError>([] { Device::cpu(0, {.separate = true}); }),
        "ZG_NUM_THREADS: expected "));
  }
}

TEST_CASE(
    "processes: a ProcessId is not alive if another process has its pid, nor if it is a zombie") {
  const cpu::ProcessId own = cpu::ProcessId::own();
  CHECK(own.pid == getpid());
  CHECK(own.start > 0);
  CHECK(own.alive());
  cpu::ProcessId earlier = own;
  earlier.start -= 1;
  CHECK(!earlier.alive());

  int up[2], down[2];
  REQUIRE(pipe(up) == 0);
  REQUIRE(pipe(down) == 0);
  const pid_t child = fork();
  if (child == 0) {
    close(down[1]);
    const cpu::ProcessId id = cpu::ProcessId::own();
    char byte = 0;
    const bool is_sent = write(up[1], &id, sizeof id) == sizeof id;
    _exit(is_sent && read(down[0], &byte, 1) == 0 ? 0 : 1);  // when the other end is closed
  }
  cpu::ProcessId other;
  REQUIRE(read(up[0], &other, sizeof other) == sizeof other);
  CHECK(other.pid == child);
  CHECK(other.same_host(own));
  CHECK(other.alive());
  kill(child, SIGSTOP);
  CHECK(other.alive());
  kill(child, SIGCONT);
  close(down[1]);
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  CHECK(!other.alive());  // a zombie
  waitpid(child, nullptr, 0);
  CHECK(!other.alive());
  for (const int open : {up[0], up[1], down[0]}) close(open);
}

}  // namespace zg::testing
