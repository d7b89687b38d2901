#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/temporary_folder.h"
#include "tests/support/wait_until.h"
#include "zerograd/runtime/comm/processes.h"

namespace zg::testing {

struct Ended {
  int status;
  std::string text;  // stdout and stderr of all processes
};

/// Runs this binary under mpirun. Each process runs the given test case, which is skipped
/// otherwise.
inline Ended mpirun(int processes, const std::string& test, const std::string& environment = "",
                    const std::string& options = "") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  // Two mpirun that start at the same time could both try to create the default folder.
  const TemporaryFolder session, said;
  // Leaks and races inside the MPI library are not errors of this project.
  const std::string command = environment + " ZG_TEST_SAID=" + said.path() +
                              " ASAN_OPTIONS=\"$ASAN_OPTIONS:detect_leaks=0\""
                              " TSAN_OPTIONS=\"$TSAN_OPTIONS:ignore_noninstrumented_modules=1\""
                              " mpirun --allow-run-as-root --oversubscribe"
                              " --mca orte_tmpdir_base " +
                              session.path() + " " + options + " -np " + std::to_string(processes) +
                              " '" + self + "' --no-skip -tc='" + test + "' 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe);
  Ended ended{};
  char bytes[4096];
  while (const size_t count = std::fread(bytes, 1, sizeof bytes, pipe))
    ended.text.append(bytes, count);
  const int status = pclose(pipe);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended;
}

/// In a process of mpirun(): returns once `ranks` processes have called end_with_others(). mpirun
/// kills the others when one ends, and each must have printed its error before.
inline void await_others(int ranks) {
  const auto all_said = [&] {
    return std::distance(std::filesystem::directory_iterator(std::getenv("ZG_TEST_SAID")), {}) >=
           ranks;
  };
  wait_until(all_said, std::to_string(ranks) + " ranks have said how they end");
}

[[noreturn]] inline void end_with_others(int status, int ranks) {
  std::fflush(nullptr);
  write_file(std::getenv("ZG_TEST_SAID") + ("/" + std::to_string(process_rank()->rank)), "");
  await_others(ranks);
  std::_Exit(status);
}

// doctest cannot skip at run time; ctest reads the line.
inline bool skips_mpi(const char* what) {
  const char* why = mpi_version().empty() ? "this build links no MPI"
                    : std::system("mpirun --version >/dev/null 2>&1") != 0 ? "there is no mpirun"
                                                                           : nullptr;
  if (why) std::printf("SKIPPED: mpi: %s (%s)\n", what, why);
  return why != nullptr;
}

}  // namespace zg::testing
