#pragma once

#include <memory>
#include <string>

#include "tools/options/options.h"
#include "tools/run/setup.h"
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

/// Reads data.chat_format_path, if it is given, into data.chat_format. Throws FileError.
void resolve_chat_format(DataOptions& data);

}  // namespace zg::tools
