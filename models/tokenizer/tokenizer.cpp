#include "zerograd/models/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "zerograd/models/tokenizer/bpe_merges.h"
#include "zerograd/models/tokenizer/split_pattern.h"
#include "zerograd/models/tokenizer/vocabulary.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

/// Finds added tokens in a text: the leftmost one, and the longest one at that position.
class AddedTokens {
 public:
  AddedTokens() = default;
  /// Takes each token whose field `normalized` equals the argument `normalized`.
  AddedTokens(std::span<const AddedToken> tokens, bool normalized);

  /// Finds the next token and moves `from` to its begin. Null: none, and `from` is text.size().
  const AddedToken* find(std::string_view text, size_t& from) const;

 private:
  std::vector<AddedToken> tokens_;           // sorted by first byte, then the longest first
  std::array<uint32_t, 257> first_of_ = {};  // by first byte: index of its first token
};

static unsigned char first_byte(std::string_view text) {
  return static_cast<unsigned char>(text[0]);
}

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

struct TokenizerState {
  TokenizerParts parts;
  std::vector<std::string> bytes;  // the bytes of each token, by id
  std::array<int32_t, 256> id_of_byte;
  std::unordered_map<std::string_view, int32_t> id_of;  // by bytes; for ignore_merges only
  MergeTable merges;
  std::vector<Splitter> splitters;  // each one splits the pieces of the previous one
  AddedTokens raw, normalized;      // searched in this order

  TokenizerState(TokenizerParts given, const std::string& where);

 private:
  void check(const std::string& where) const;
  void find_bytes(const std::string& where);
};

TokenizerState::TokenizerState(TokenizerParts given, const std::string& where)
    : parts(std::move(given)), merges(parts.merges) {
  check(where);
  find_bytes(where);
  if (!parts.split.empty()) splitters.emplace_back(parts.split, where + ": pre_tokenizer");
  if (parts.gpt2_split) splitters.emplace_back(gpt2_split_pattern, where + ": pre_tokenizer");
  raw = AddedTokens(parts.added, false);
  normalized = AddedTokens(parts.added, true);
}

void TokenizerState::check(const std::string& where) const {
  const auto known = [&](int32_t id) {
    return id >= 0 && static_cast<size_t>(id) < parts.tokens.size();
  };
  for (const Merge& merge : parts.merges)
    if (!known(merge.left) || !known(merge.right) || !known(merge.result))
      throw FileError(fmt::format("{}: a merge of tokens {} and {} to {}; expected ids below {}",
                                  where, merge.left, merge.right, merge.result,
                                  parts.tokens.size()));
  for (const AddedToken& token : parts.added) {
    if (token.content.empty()) throw FileError(where + ": added_tokens: one is empty");
    if (!known(token.id) || parts.tokens[static_cast<size_t>(token.id)] != token.content)
      throw FileError(fmt::format("{}: added_tokens: '{}' is not the token {} of the vocabulary",
                                  where, token.content, token.id));
  }
}

void TokenizerState::find_bytes(const std::string& where) {
  // decode() writes added tokens unchanged, except those that a merge also produces: these are
  // decoded to bytes.
  std::vector<bool> literal(parts.tokens.size());
  for (const AddedToken& token : parts.added) literal[static_cast<size_t>(token.id)] = true;
  for (const Merge& merge : parts.merges) literal[static_cast<size_t>(merge.result)] = false;
  id_of_byte.fill(-1);
  bytes.reserve(parts.tokens.size());
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    const auto decoded = from_alphabet(parts.tokens[id]);
    const bool is_byte = decoded && decoded->size() == 1;
    bytes.push_back(decoded && (is_byte || !literal[id]) ? *decoded : parts.tokens[id]);
    if (is_byte)
      id_of_byte[static_cast<unsigned char>(decoded->front())] = static_cast<int32_t>(id);
    if (decoded && parts.ignore_merges && !literal[id])
      id_of.emplace(bytes.back(), static_cast<int32_t>(id));
  }
  for (size_t byte = 0; byte < id_of_byte.size(); ++byte)
    if (id_of_byte[byte] < 0)
      throw Unsupported(
          fmt::format("{}: the vocabulary has no token '{}' for the byte {}; this version reads "
                      "byte-level BPE, which has all 256",
                      where, byte_alphabet()[byte], byte));
}

namespace {

/// The state of one call of encode().
class Encoder {
 public:
  Encoder(const TokenizerState& state, std::vector<int32_t>& ids) : state_(state), ids_(ids) {}

  void text(std::string_view text) {
    for_text_between(state_.raw, text, [&](std::string_view without_raw) {
      for_text_between(state_.normalized, without_raw,
                       [&](std::string_view plain) { pieces(plain, 0); });
    });
  }

 private:
  template <class Plain>
  void for_text_between(const AddedTokens& tokens, std::string_view text, const Plain& plain) {
    for (size_t begin = 0; begin < text.size();) {
      size_t end = begin;
      const AddedToken* token = tokens.find(text, end);
      if (begin < end) plain(text.substr(begin, end - begin));
      if (token) ids_.push_back(token->id);
      begin = end + (token ? token->content.size() : 0);
    }
  }

  void pieces(std::string_view text, size_t stage) {
    if (state_.parts.add_prefix_space && is_byte_level(stage) && text.front() != ' ')
      text = prefixed_.emplace_back(" " + std::string(text));
    if (stage == state_.splitters.size()) return word(text);
    const bool last = stage + 1 == state_.splitters.size() &&
                      !(state_.parts.add_prefix_space && is_byte_level(stage + 1));
    Splitter::Pieces parts(state_.splitters[stage], text);
    for (std::string_view piece; parts.next(piece);) last ? word(piece) : pieces(piece, stage + 1);
  }

  // ByteLevel is stage 0, or stage 1 if the tokenizer has a Split before it.
  bool is_byte_level(size_t stage) const { return stage == (state_.parts.split.empty() ? 0u : 1u); }

  void word(std::string_view bytes) {
    if (bytes.size() == 1)
      return ids_.push_back(state_.id_of_byte[static_cast<unsigned char>(bytes.front())]);
    const WordCache::Key key = WordCache::key_of(bytes);
    if (const auto known = cache_.find(key); !known.empty())
      return void(ids_.insert(ids_.end(), known.begin(), known.end()));
    tokens_.clear();
    const auto whole = state_.id_of.find(bytes);
    if (whole != state_.id_of.end()) {
      tokens_.push_back(whole->second);
    } else {
      for (const char byte : bytes)
        tokens_.push_back(state_.id_of_byte[static_cast<unsigned char>(byte)]);
      state_.merges.apply(tokens_, scratch_);
    }
    cache_.add(key, tokens_);
    ids_.insert(ids_.end(), tokens_.begin(), tokens_.end());
  }

  const TokenizerState& state_;
  std::vector<int32_t>& ids_;
  WordCache cache_;
  MergeScratch scratch_;
  std::vector<int32_t> tokens_;
  std::deque<std::string> prefixed_;  // owns the strings that cache_ refers to
};

}  // namespace

Tokenizer::Tokenizer(TokenizerParts parts, const std::string& where)
    : state_(std::make_shared<const TokenizerState>(std::move(parts), where)) {}

int64_t Tokenizer::vocabulary() const { return static_cast<int64_t>(state_->bytes.size()); }
const TokenizerParts& Tokenizer::parts() const { return state_->parts; }

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  Encoder(*state_, ids).text(text);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocabulary())
      throw ConfigError(fmt::format("decode: expected ids below {}, got {}", vocabulary(), id));
    text += state_->bytes[static_cast<size_t>(id)];
  }
  return text;
}

std::optional<int32_t> Tokenizer::id_of_added(std::string_view content) const {
  for (const AddedToken& token : state_->parts.added)
    if (token.content == content) return token.id;
  return std::nullopt;
}

}  // namespace zg::models
