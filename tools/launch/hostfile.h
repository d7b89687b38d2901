#pragma once

#include <string>
#include <vector>

namespace zg::tools {

/// A machine and the slots of it that are used. Each slot runs one rank.
struct Host {
  std::string name;
  std::vector<int> slots;
};

/// Reads DeepSpeed's hostfile: "worker-0 slots=4" on each line, # starts a comment. FileError.
/// ConfigError with file and line for any other text, an invalid host name or a repeated one.
std::vector<Host> read_hostfile(const std::string& path);
/// Parses the text of a hostfile; `file` is named in errors.
std::vector<Host> parse_hosts(const std::string& text, const std::string& file);

/// Selects "worker-0@worker-1:0,2": whole hosts, or slots of a host. At most one of `include` and
/// `exclude` may be given. ConfigError.
std::vector<Host> selected(std::vector<Host> hosts, const std::string& include,
                           const std::string& exclude);

}  // namespace zg::tools
