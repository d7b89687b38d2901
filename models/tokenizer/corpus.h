#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/models/data/data.h"
#include "zerograd/models/data/token_writer.h"
#include "zerograd/models/tokenizer/tokenizer.h"

namespace zg::models {

/// The documents of text files, one after another. Each line of a .jsonl or .json file is an object
/// with a document under `key`, as Megatron's preprocess_data.py reads them; any other file is one
/// document. Throws FileError with file, line and key.
class ZG_API TextDocuments {
 public:
  TextDocuments(std::vector<std::string> paths, std::string key = "text")
      : paths_(std::move(paths)), key_(std::move(key)) {}

  bool next(std::string& document);  ///< false: there are no more

 private:
  bool next_line(std::string& document);

  std::vector<std::string> paths_;
  std::string key_;
  size_t path_ = 0;  // index of the file that is being read
  std::ifstream lines_;
  int64_t line_ = 0;
};

struct CorpusCounts {
  int64_t documents = 0;
  int64_t empty = 0;  ///< documents without tokens, which are left out as in Megatron
  int64_t bytes = 0;  ///< size of the text
  int64_t tokens = 0;
};

struct CorpusOptions {
  std::optional<int32_t> end_of_document = {};  ///< appended to each document that has tokens
  int threads = 0;                              ///< 0: all cores
  /// Called about every 32 MiB of text.
  std::function<void(const CorpusCounts& so_far)> progress = {};
};

/// Writes the tokens of each document, in order, with those that the tokenizer puts around a text.
/// So each document of Llama begins with "<s>". The result does not depend on `threads`. The caller
/// finishes the writer.
///
///   auto writer = models::indexed_dataset_writer("corpus", tokenizer.vocabulary());
///   models::TextDocuments documents({"a.txt", "b.jsonl"});
///   models::tokenize_corpus(documents, tokenizer, *writer);
///   writer->finish();
ZG_API CorpusCounts tokenize_corpus(TextDocuments& documents, const Tokenizer& tokenizer,
                                    TokenWriter& writer, const CorpusOptions& options = {});

/// The tokenizer as the codec of a dataset. decode() returns valid UTF-8: an incomplete character
/// becomes U+FFFD, and so does a token that the tokenizer does not have.
ZG_API std::unique_ptr<const TextCodec> tokenizer_codec(const Tokenizer& tokenizer);

/// A text file, tokenized as one document, with the tokens that the tokenizer puts around a text.
/// Throws FileError if it cannot be read. Throws ConfigError with the sizes if a split is shorter
/// than one block.
ZG_API std::unique_ptr<Dataset> tokenized_dataset(const std::string& path,
                                                  const Tokenizer& tokenizer,
                                                  const TextOptions& options);

}  // namespace zg::models
