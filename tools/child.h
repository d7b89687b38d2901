#pragma once

#include <string>
#include <vector>

namespace zg::tools {

struct ChildEnd {
  int status;  ///< as a shell sees it: 128 + N after signal N
  int signal;  ///< SIGINT or SIGTERM that this process got meanwhile; 0: none
};

/// Runs a program, found as execvp does, until it ends. No shell sees any of the words. A SIGINT or
/// SIGTERM that somebody sends to this process alone is passed on, and when this process is gone
/// the child gets a SIGTERM. Unsupported when it cannot be started, with `advice` at the end.
ChildEnd run_child(std::vector<std::string> words, const std::string& advice);

struct CapturedEnd {
  ChildEnd end;
  std::string output;  ///< of both streams, in the order of their writes
  bool timed_out;
};

/// The same for `seconds` at most, and what the child prints. Then, at a SIGINT or SIGTERM, and
/// when this process is gone, it is killed at once.
CapturedEnd capture_child(std::vector<std::string> words, const std::string& advice,
                          double seconds);

}  // namespace zg::tools
