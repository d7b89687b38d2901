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

}  // namespace zg::tools
