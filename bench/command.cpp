#include "bench/command.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/commands/subcommands.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/text.h"

namespace zg::tools {

nlohmann::ordered_json model_json(const models::GPTConfig& model) {
  return {{"layers", model.layers},
          {"heads", model.heads},
          {"width", model.width},
          {"vocabulary", model.vocabulary},
          {"block_size", model.block_size},
          {"tied", model.tied},
          {"dropout", model.dropout},
          {"family", name_of(model.family)},
          {"position", name_of(model.position)}};
}

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
  if (what == "step") return bench_step(rest);
  if (what == "generate") return bench_generate(rest);
  if (what == "pipeline") return bench_pipeline(rest);
  if (what == "tokenizer") return bench_tokenizer(rest);
  if (what == "--help" || what == "-h")
    return std::printf(
               "usage: zerograd bench kernels|step|generate|pipeline|offload|tokenizer [flags]\n\n"
               "  kernels    each kernel beside what bounds it\n"
               "  step       a step of train beside the machine's peak, and where it goes\n"
               "  generate   tokens a second beside memory that is read\n"
               "  pipeline   how long stages wait for each other, beside the formula\n"
               "  offload    a drive, memory and AdamW beside their limits\n"
               "  tokenizer  text to tokens and back, bytes a second on one thread\n\n"
               "  zerograd bench kernels --help      every flag and its default\n"),
           0;
  throw ConfigError(
      "bench: expected kernels, step, generate, pipeline, offload or tokenizer, got '" +
      printable(what) + "'" +
      did_you_mean(what, {"kernels", "step", "generate", "pipeline", "offload", "tokenizer"}));
}

}  // namespace zg::tools
