#include "tools/subcommands.h"
#include "tools/training.h"

namespace zg::tools {

int train(const std::vector<std::string>& arguments) {
  TrainOptions options;
  if (!parse(arguments, options)) return 0;
  return Training(options).run();
}

}  // namespace zg::tools
