#include "tools/bench.h"

#include <cstdio>

#include "runtime/error.h"
#include "tools/subcommands.h"
#include "tools/text.h"
#include "tools/values.h"

namespace zg::tools {

std::regex pattern_of(const std::string& filter) {
  try {
    return std::regex(filter);
  } catch (const std::regex_error& error) {
    throw ConfigError("--filter: expected a regular expression, got '" + printable(filter) + "' (" +
                      error.what() + ")");
  }
}

int bench(const std::vector<std::string>& arguments) {
  const std::string what = arguments.empty() ? "--help" : arguments.front();
  const std::vector<std::string> rest(arguments.begin() + (arguments.empty() ? 0 : 1),
                                      arguments.end());
  if (what == "kernels") return bench_kernels(rest);
  if (what == "offload") return bench_offload(rest);
  if (what == "step" || what == "generate")
    throw Unsupported("bench " + what +
                      ": this version measures kernels and offload alone; try zerograd bench "
                      "kernels");
  if (what == "--help" || what == "-h")
    return std::printf(
               "usage: zerograd bench kernels|offload [flags]\n\n"
               "  kernels    each kernel beside what bounds it\n"
               "  offload    a drive, memory and AdamW beside their limits\n\n"
               "  zerograd bench kernels --help      every flag and its default\n"),
           0;
  throw ConfigError("bench: expected kernels, step, generate or offload, got '" + printable(what) +
                    "'" + did_you_mean(what, {"kernels", "step", "generate", "offload"}));
}

}  // namespace zg::tools
