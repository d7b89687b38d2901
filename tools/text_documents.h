#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace zg::tools {

/// The documents of files, one after another: of a .jsonl or .json each line has one under a key,
/// as Megatron's preprocess_data.py takes them; any other file is one. FileError with file, line
/// and key.
class TextDocuments {
 public:
  TextDocuments(std::vector<std::string> paths, std::string key)
      : paths_(std::move(paths)), key_(std::move(key)) {}

  bool next(std::string& document);  ///< false: there are no more

 private:
  bool next_line(std::string& document);

  std::vector<std::string> paths_;
  std::string key_;
  size_t path_ = 0;  // the one that is read
  std::ifstream lines_;
  int64_t line_ = 0;
};

}  // namespace zg::tools
