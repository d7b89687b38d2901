#pragma once

#include <memory>
#include <string>

#include "zerograd/models/data/data.h"
#include "zerograd/models/data/text_codec.h"
#include "zerograd/models/data/token_source.h"

namespace zg::models {

/// A long sequence of tokens, cut into samples of block_size.
struct TokenSequence {
  std::string path;  ///< for errors
  std::unique_ptr<const TokenSource> tokens;
  int64_t vocabulary = 0;
  std::unique_ptr<const TextCodec> codec;  ///< null: tokens are opaque numbers
};
/// ConfigError for options out of range or when a split is shorter than one block.
ZG_API std::unique_ptr<Dataset> window_dataset(TokenSequence sequence, const TextOptions& options);

}  // namespace zg::models
