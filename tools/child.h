#pragma once

#include <string>
#include <vector>

namespace zg::tools {

/// As the first word of a command line: this program again, under its own name.
inline constexpr const char* this_program = "zerograd";

struct ChildEnd {
  int status;  ///< as a shell sees it: 128 + N after signal N
  int signal;  ///< SIGINT, SIGTERM or SIGHUP that this process got meanwhile; 0: none
};

/// Runs this_program, or another one found as execvp does, until it ends. No shell sees any of the
/// words. A SIGINT, SIGTERM or SIGHUP that somebody sends to this process alone is passed on (an
/// ignored SIGHUP stays ignored in both), and when this process is gone the child gets a SIGTERM.
/// Unsupported when it cannot be started, with `advice` at the end.
ChildEnd run_child(std::vector<std::string> words, const std::string& advice);

struct CapturedEnd {
  ChildEnd end;
  std::string output;  ///< of both streams, in the order of their writes
  bool timed_out;
};

/// The same for `seconds` at most, and what the child prints. Then, at one of those signals, and
/// when this process is gone, it is killed at once.
CapturedEnd capture_child(std::vector<std::string> words, const std::string& advice,
                          double seconds);

}  // namespace zg::tools
