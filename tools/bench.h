#pragma once

#include <regex>
#include <string>
#include <vector>

// The subcommands of `zerograd bench`, and what they share. Each takes its arguments without its
// name and returns the exit status.
namespace zg::tools {

int bench_kernels(const std::vector<std::string>& arguments);
int bench_offload(const std::vector<std::string>& arguments);

/// Of --filter; ConfigError when it is none.
std::regex pattern_of(const std::string& filter);

}  // namespace zg::tools
