#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/command_line/command_line.h"

namespace zg::tools {

struct TokenizeOptions {
  enum class Format : uint8_t { megatron, llmc };

  Given given;
  std::vector<std::string> inputs;
  std::string tokenizer;   ///< a path, or train:SIZE
  int64_t train_size = 0;  ///< SIZE of train:SIZE; 0: an existing tokenizer is used
  std::string vocabulary_file, merges_file;  ///< GPT-2's two files, instead of a path
  std::string prefix;                        ///< path prefix of the output files
  Format format = Format::megatron;
  std::string json_key = "text";
  bool append_eod = false;
  std::string eod;  ///< empty: the tokenizer's end-of-document token
  int64_t workers = 0;
};
/// Returns false after printing help. ConfigError.
bool parse(const std::vector<std::string>& arguments, TokenizeOptions& options);

}  // namespace zg::tools
