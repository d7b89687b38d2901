#pragma once

#include <string>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/models/gguf/gguf.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/dtype.h"

// Options of the subcommands that only read and write files. Each parse() returns false after
// printing help.
namespace zg::tools {

struct VerifyOptions {
  Given given;
  std::string checkpoint;
};

/// Options to turn a checkpoint into one file or, with --split, a file into a checkpoint.
struct ConsolidateOptions {
  std::string from, to;
  bool split = false;
  DType dtype = DType::f32;
  int64_t ranks = 1;
  TrainOptions train;  ///< flags of train: the model
};

struct ExportOptions {
  std::string checkpoint;
  // One of these three is given.
  std::string hugging_face;                        ///< path of a folder
  std::string gguf;                                ///< path of a file
  std::string peft;                                ///< path of a folder for adapters
  models::GGUFType dtype = models::GGUFType::f32;  ///< of the file's or folder's matrices
  bool merge = false;                              ///< add the adapters to the weights
  AdapterPaths adapters;
  std::string tokenizer;  ///< empty: the tokenizer stored in the checkpoint
  TrainOptions train;     ///< flags of train: the model
};

bool parse(const std::vector<std::string>& arguments, VerifyOptions& options);
bool parse(const std::vector<std::string>& arguments, ExportOptions& options);
bool parse(const std::vector<std::string>& arguments, ConsolidateOptions& options);

}  // namespace zg::tools
