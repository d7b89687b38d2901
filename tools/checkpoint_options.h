#pragma once

#include <string>
#include <vector>

#include "tools/command_line.h"

// What the subcommands that only touch files can be told. Each parse() is false after printing
// help.
namespace zg::tools {

struct VerifyOptions {
  Given given;
  std::string checkpoint;
};

bool parse(const std::vector<std::string>& arguments, VerifyOptions& options);

}  // namespace zg::tools
