#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/models/data/conversation_data.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/tokenizer/tokenizer.h"

// The data of decoders, and of those that are fine-tuned on conversations.
namespace zg::tools {

struct DatasetRequest {
  int64_t block_size = 0;  ///< 0: the default of the data
  uint64_t seed = 3407;
  /// For documents. 0: the tokenizer's vocabulary or, without a tokenizer, the largest token plus
  /// 1, which reads all documents.
  int64_t vocabulary = 0;
  /// Null: one token per character; in conversations texts are numbers, "15 2 7".
  const models::Tokenizer* tokenizer = nullptr;
  // Conversations only.
  std::optional<int32_t> end = {};  ///< ends a response
  std::string folder = {};          ///< the model's, for errors; empty: none
  bool validation_only = false;     ///< data.source is not read if there is data.validation_source
};

/// Reads the conversations of data.source and of data.validation_source, if that is given. Throws
/// FileError and ConfigError for invalid files, and where none is left to train on; Unsupported for
/// messages without a chat format.
std::unique_ptr<models::Dataset> conversation_dataset(const DataOptions& data,
                                                      const DatasetRequest& request);

/// Notes on members of conversations without effect, and on conversations that do not fit into the
/// block size. Some may be empty.
std::vector<std::string> notes_of(const models::Dataset& dataset);

/// The format in `path`, F.json or F.jinja, or with "" the chat template of a model's folder.
/// Absent: the folder has none. `saved`, an earlier run's data.chat_format, stays if it has the
/// same template. Another one that asks for a date gets today's. Throws FileError.
std::optional<models::ChatFormat> chat_format_of(const std::string& path, const std::string& folder,
                                                 const std::string& saved);

/// Sets data.chat_format to chat_format_of(data.chat_format_path), if that is not empty, or if
/// there is no format yet and the data has messages.
void resolve_chat_format(DataOptions& data, const std::string& folder, const std::string& saved);

}  // namespace zg::tools
