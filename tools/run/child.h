#pragma once

#include <string>
#include <vector>

namespace zg::tools {

/// As the first word of a command line: start this program again, with its own process name.
inline constexpr const char* this_program = "zerograd";

struct ChildEnd {
  int status;  ///< as in a shell: 128 + N after signal N
  int signal;  ///< SIGINT, SIGTERM or SIGHUP that this process received meanwhile; 0: none
};

/// Runs this_program, or another program found as by execvp, until it ends. No shell interprets the
/// words. A SIGINT, SIGTERM or SIGHUP sent to this process alone is forwarded to the child (an
/// ignored SIGHUP stays ignored in both). If this process dies, the child receives SIGTERM.
/// Unsupported, with `advice` at the end of the message, when the program cannot be started.
ChildEnd run_child(std::vector<std::string> words, const std::string& advice);

struct CapturedEnd {
  ChildEnd end;
  std::string output;  ///< stdout and stderr, in the order of their writes
  bool timed_out;
};

/// The same for at most `seconds`, and captures what the child prints. At the time limit, at one of
/// those signals, and if this process dies, the child is killed at once.
CapturedEnd capture_child(std::vector<std::string> words, const std::string& advice,
                          double seconds);

}  // namespace zg::tools
