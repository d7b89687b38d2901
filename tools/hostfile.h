#pragma once

#include <string>
#include <vector>

namespace zg::tools {

/// A machine and which of its slots, each for one rank, are used.
struct Host {
  std::string name;
  std::vector<int> slots;
};

/// DeepSpeed's: "worker-0 slots=4" on each line, # before a comment. FileError; ConfigError with
/// file and line for anything else, a name that is none, and one that comes twice.
std::vector<Host> read_hostfile(const std::string& path);
/// The same of its text; `file` is for errors.
std::vector<Host> parse_hosts(const std::string& text, const std::string& file);

/// "worker-0@worker-1:0,2": hosts, whole or by slot. At most one of the two is given. ConfigError.
std::vector<Host> selected(std::vector<Host> hosts, const std::string& include,
                           const std::string& exclude);

}  // namespace zg::tools
