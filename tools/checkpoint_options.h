#pragma once

#include <string>
#include <vector>

#include "tools/options.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/dtype.h"

// What the subcommands that only touch files can be told. Each parse() is false after printing
// help.
namespace zg::tools {

struct VerifyOptions {
  Given given;
  std::string checkpoint;
};

/// A checkpoint to a file or, to split, a file to a checkpoint.
struct ConsolidateOptions {
  Given given;
  std::string from, to;
  bool split = false;
  DType dtype = DType::f32;
  int64_t ranks = 1;
  ModelOptions model;
};

struct ExportOptions {
  Given given;
  std::string checkpoint;
  std::string hugging_face;  ///< a folder
  std::string tokenizer;     ///< empty: the checkpoint's own
  ModelOptions model;
};

bool parse(const std::vector<std::string>& arguments, VerifyOptions& options);
bool parse(const std::vector<std::string>& arguments, ExportOptions& options);
bool parse(const std::vector<std::string>& arguments, ConsolidateOptions& options);

}  // namespace zg::tools
