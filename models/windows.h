#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/data.h"

namespace zg::models {

/// A long sequence of tokens, cut into samples of block_size. `characters` (ascending code points,
/// one per id) makes it a text; without them tokens are opaque numbers.
struct TokenSequence {
  std::string path;  ///< for errors
  std::vector<uint16_t> tokens;
  int64_t vocabulary = 0;
  std::vector<char32_t> characters;
};
/// ConfigError for options out of range or when a split is shorter than one block.
std::unique_ptr<Dataset> window_dataset(TokenSequence sequence, const TextOptions& options);

}  // namespace zg::models
