#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tools/options/options.h"
#include "tools/run/setup.h"
#include "zerograd/models/data/conversation_data.h"
#include "zerograd/models/data/data.h"

// The data of decoders that are fine-tuned on conversations.
namespace zg::tools {

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
