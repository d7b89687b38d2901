#include <algorithm>
#include <cstring>

#include "zerograd/models/tokenizer/text_pipeline.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {
namespace {

unsigned char first_byte(std::string_view text) { return static_cast<unsigned char>(text[0]); }

// The last code point of a text; absent: the text does not end with valid UTF-8.
std::optional<char32_t> last_code_point(std::string_view text) {
  for (size_t bytes = 1; bytes <= std::min(longest_utf8, text.size()); ++bytes) {
    const std::string_view end = text.substr(text.size() - bytes);
    if (valid_utf8(end) < bytes) continue;
    size_t at = 0;
    return next_code_point(end, at, "");
  }
  return std::nullopt;
}

std::optional<char32_t> first_code_point(std::string_view text) {
  const std::string_view begin = text.substr(0, longest_utf8);
  if (valid_utf8(begin) == 0) return std::nullopt;
  size_t at = 0;
  return next_code_point(begin, at, "");
}

bool is_word(std::optional<char32_t> character) {
  return character && is_word_character(*character);
}

bool is_space(std::optional<char32_t> character) { return character && is_white_space(*character); }

size_t end_without_spaces(std::string_view text) {
  while (const auto last = last_code_point(text)) {
    if (!is_space(last)) break;
    text.remove_suffix(utf8(*last).size());
  }
  return text.size();
}

size_t spaces_at_begin(std::string_view text) {
  size_t count = 0;
  while (const auto first = first_code_point(text.substr(count))) {
    if (!is_space(first)) break;
    count += utf8(*first).size();
  }
  return count;
}

}  // namespace

AddedTokens::AddedTokens(std::span<const AddedToken> tokens, bool normalized,
                         std::span<const NormalizerStep> steps) {
  std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(tokens_),
               [&](const AddedToken& token) { return token.normalized == normalized; });
  if (normalized)
    for (AddedToken& token : tokens_) token.content = models::normalized(token.content, steps);
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  // If tokens have the same content, one is kept: the first special one, or the first if none is.
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    const int order = a.content.compare(b.content);
    return order != 0 ? order < 0 : a.special && !b.special;
  });
  const auto same = [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same), tokens_.end());
  for (const AddedToken& token : tokens_) ++first_of_[first_byte(token.content) + size_t{1}];
  for (size_t i = 1; i < first_of_.size(); ++i) first_of_[i] += first_of_[i - 1];
}

// Reduces the range of tokens to those that begin with the text's bytes, one byte at a time.
const AddedToken* AddedTokens::longest_at(std::string_view text) const {
  auto begin = tokens_.begin() + first_of_[first_byte(text)];
  auto end = tokens_.begin() + first_of_[first_byte(text) + size_t{1}];
  const AddedToken* longest = nullptr;
  for (size_t at = 1; begin != end; ++at) {
    if (begin->content.size() == at) longest = &*begin++;
    if (at == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto is_less = [&](const AddedToken& token) {
      return static_cast<unsigned char>(token.content[at]) < byte;
    };
    const auto is_same = [&](const AddedToken& token) { return token.content[at] == text[at]; };
    if (begin != end && !is_same(*begin)) begin = std::partition_point(begin, end, is_less);
    if (begin != end && !is_same(end[-1])) end = std::partition_point(begin, end, is_same);
  }
  return longest;
}

const AddedToken* AddedTokens::find(std::string_view text, size_t& from) const {
  if (tokens_.empty()) return nullptr;
  const unsigned char only = first_byte(tokens_.front().content);
  const bool one_first_byte = only == first_byte(tokens_.back().content);
  for (; from < text.size(); ++from) {
    if (one_first_byte) {
      const void* found = std::memchr(text.data() + from, only, text.size() - from);
      if (!found) return nullptr;
      from = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    }
    if (const AddedToken* token = longest_at(text.substr(from))) return token;
  }
  return nullptr;
}

// As in Hugging Face's tokenizers, the search continues after a token's content, not after the
// spaces that it strips; and a token that `single_word` rejects hides shorter ones at its position.
void AddedTokens::split(std::string_view text, const OnText& on_text,
                        const OnToken& on_token) const {
  size_t done = 0;  // the text before this index was passed to on_token or on_text
  size_t from = 0;
  size_t spaces_end = 0;  // end of the spaces that the last rstrip found
  while (const AddedToken* token = find(text, from)) {
    size_t begin = from, end = from + token->content.size();
    from = end;
    if (token->single_word && (is_word(last_code_point(text.substr(0, begin))) ||
                               is_word(first_code_point(text.substr(end)))))
      continue;
    // Each direction examines a space only once, so that the time is linear in the text.
    if (token->lstrip)
      begin = begin < done ? done : done + end_without_spaces(text.substr(done, begin - done));
    if (token->rstrip && end >= spaces_end) spaces_end = end + spaces_at_begin(text.substr(end));
    if (token->rstrip) end = spaces_end;
    if (begin == end) continue;  // it is white space that an earlier token has stripped
    if (done < begin) on_text(text.substr(done, begin - done));
    on_token(token->id, text.substr(begin, end - begin));
    done = end;
  }
  if (done < text.size()) on_text(text.substr(done));
}

}  // namespace zg::models
