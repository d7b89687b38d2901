#pragma once

#include <memory>
#include <string>

#include "zerograd/models/data/data.h"
#include "zerograd/models/tokenizer/tokenizer.h"

namespace zg::models {

/// A text file in the tokens of byte-level BPE. FileError when it cannot be read; ConfigError with
/// the numbers when it is too short for one block per split.
ZG_API std::unique_ptr<Dataset> tokenized_dataset(const std::string& path,
                                                  const Tokenizer& tokenizer,
                                                  const TextOptions& options);

}  // namespace zg::models
