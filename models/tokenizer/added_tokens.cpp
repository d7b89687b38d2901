#include "zerograd/models/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>

namespace zg::models {
namespace {

unsigned char first_byte(std::string_view text) { return static_cast<unsigned char>(text[0]); }

}  // namespace

AddedTokens::AddedTokens(std::span<const AddedToken> tokens, bool normalized) {
  std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(tokens_),
               [&](const AddedToken& token) { return token.normalized == normalized; });
  std::sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    if (first_byte(a.content) != first_byte(b.content))
      return first_byte(a.content) < first_byte(b.content);
    return a.content.size() > b.content.size();
  });
  for (const AddedToken& token : tokens_) ++first_of_[first_byte(token.content) + size_t{1}];
  for (size_t i = 1; i < first_of_.size(); ++i) first_of_[i] += first_of_[i - 1];
}

const AddedToken* AddedTokens::find(std::string_view text, size_t& from) const {
  if (tokens_.empty()) return from = text.size(), nullptr;
  const unsigned char only = first_byte(tokens_.front().content);
  const bool one_first_byte = only == first_byte(tokens_.back().content);
  for (; from < text.size(); ++from) {
    if (one_first_byte) {
      const void* found = std::memchr(text.data() + from, only, text.size() - from);
      if (!found) break;
      from = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    }
    const std::string_view rest = text.substr(from);
    for (uint32_t i = first_of_[first_byte(rest)]; i < first_of_[first_byte(rest) + size_t{1}]; ++i)
      if (rest.starts_with(tokens_[i].content)) return &tokens_[i];
  }
  return from = text.size(), nullptr;
}

}  // namespace zg::models
