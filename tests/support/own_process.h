#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace zg::testing {

/// Starts a skipped test case of this program as a process of its own, by a shell. `before` comes
/// before the program in the shell's line: "ulimit -v 1024000 && exec", "NAME=value".
inline FILE* start_own_test(const std::string& test_case, const std::string& before = "") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string line =
      before + " '" + self + "' --no-skip --test-case='" + test_case + "' 2>&1";
  return popen(line.c_str(), "r");
}

struct EndedTest {
  int status;  ///< -1: a signal ended it
  std::string text;
};

/// Waits for the end of the process.
inline EndedTest end_of_own_test(FILE* process) {
  REQUIRE(process);
  EndedTest ended;
  for (char bytes[512]; std::fgets(bytes, sizeof bytes, process);) ended.text += bytes;
  const int status = pclose(process);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

}  // namespace zg::testing
