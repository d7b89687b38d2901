#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "zerograd/runtime/storage/file_set.h"

namespace zg::models {

/// Writes documents of tokens. Of a FileSet the caller's, they are in place when that is finished;
/// else finish() puts them there, and without it nothing stays. FileError.
class ZG_API TokenWriter {
 public:
  virtual ~TokenWriter() = default;
  virtual void add_document(std::span<const int32_t> tokens) = 0;
  virtual void finish() = 0;
};

/// Megatron's PREFIX.bin and PREFIX.idx (indexed_dataset.h), a sequence for each document; uint16
/// where the vocabulary is below 65500 and else int32, as Megatron chooses.
ZG_API std::unique_ptr<TokenWriter> indexed_dataset_writer(const std::string& prefix,
                                                           int64_t vocabulary);
/// The same as NAME.bin and NAME.idx of the set.
ZG_API std::unique_ptr<TokenWriter> indexed_dataset_writer(FileSet& files, const std::string& name,
                                                           int64_t vocabulary);

/// llm.c's file (token_source.h), the documents end to end. ConfigError for a vocabulary above
/// 65536.
ZG_API std::unique_ptr<TokenWriter> token_file_writer(const std::string& path, int64_t vocabulary);
ZG_API std::unique_ptr<TokenWriter> token_file_writer(FileSet& files, const std::string& file,
                                                      int64_t vocabulary);

}  // namespace zg::models
