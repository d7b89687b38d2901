#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "zerograd/models/tokenizer/tokenizer.h"

namespace zg::models {

/// Finds tokens in a text: the leftmost, the longest of those that begin there.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// Those of `tokens` that are `normalized` or are not.
  AddedTokens(std::span<const AddedToken> tokens, bool normalized);

  /// The first at or behind `from`: moves `from` to its begin. Null and the text's end: none.
  const AddedToken* find(std::string_view text, size_t& from) const;

 private:
  std::vector<AddedToken> tokens_;           // by first byte, the longest first
  std::array<uint32_t, 257> first_of_ = {};  // by first byte: index into tokens_ of its first token
};

}  // namespace zg::models
