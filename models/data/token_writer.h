#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "zerograd/runtime/storage/file_set.h"

namespace zg::models {

/// Writes a file of tokens, document by document. Without finish() the file is not kept. Call
/// finish() of a writer in a FileSet before finish() of the FileSet, which gives the files their
/// names. A failure is a FileError.
class ZG_API TokenWriter {
 public:
  virtual ~TokenWriter() = default;
  virtual void add_document(std::span<const int32_t> tokens) = 0;
  virtual void finish() = 0;
};

/// Writes Megatron's PREFIX.bin and PREFIX.idx (indexed_dataset.h), one sequence per document.
/// Tokens are uint16 if the vocabulary is below 65500, otherwise int32, as in Megatron.
ZG_API std::unique_ptr<TokenWriter> indexed_dataset_writer(const std::string& prefix,
                                                           int64_t vocabulary);
/// Writes the same files as NAME.bin and NAME.idx of `files`.
ZG_API std::unique_ptr<TokenWriter> indexed_dataset_writer(FileSet& files, const std::string& name,
                                                           int64_t vocabulary);

/// Writes llm.c's token file (token_source.h), all documents one after another. Throws ConfigError
/// for a vocabulary above 65536.
ZG_API std::unique_ptr<TokenWriter> token_file_writer(const std::string& path, int64_t vocabulary);
ZG_API std::unique_ptr<TokenWriter> token_file_writer(FileSet& files, const std::string& file,
                                                      int64_t vocabulary);

}  // namespace zg::models
