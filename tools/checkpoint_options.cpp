#include "tools/checkpoint_options.h"

#include "tools/flags.h"

namespace zg::tools {

bool parse(const std::vector<std::string>& arguments, VerifyOptions& options) {
  const CommandLine line = {
      .usage = "zerograd verify DIR",
      .summary =
          "Reads every byte of every checkpoint in DIR, or of one step_N, and names each damage "
          "by\n"
          "file, tensor and place. Exit status 5 when there is any.",
      .positionals = {positional("DIR", "a checkpoints' DIR or one step_N", options.checkpoint)},
      .notes =
          "For a DIR the last line says which step --resume, eval and generate would take: the\n"
          "newest without damage.\n\n"
          "  zerograd verify checkpoints\n"
          "  zerograd verify checkpoints/step_300"};
  return parse(line, arguments, options.given);
}

}  // namespace zg::tools
