#include "zerograd/models/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <deque>
#include <unordered_map>

#include "zerograd/models/tokenizer/bpe_merges.h"
#include "zerograd/models/tokenizer/text_pipeline.h"
#include "zerograd/models/tokenizer/vocabulary.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {

bool is_byte_level(const TokenizerParts& parts) {
  return !parts.pre_tokenizers.empty() &&
         std::holds_alternative<ByteLevelStep>(parts.pre_tokenizers.back());
}

// Limits of the work for each byte of a text.
constexpr size_t max_steps = 16;
constexpr size_t max_added_token_bytes = 256;

// Returns `parts`. Throws if they have too many steps, before an object is made for each step.
TokenizerParts with_few_steps(TokenizerParts parts, const std::string& where) {
  for (const auto& [key, count] : {std::pair("normalizer", parts.normalizers.size()),
                                   {"pre_tokenizer", parts.pre_tokenizers.size()},
                                   {"decoder", parts.decoders.size()}})
    if (count > max_steps)
      raise<Unsupported>("{}: {}: {} steps; expected at most {} (max_steps)", where, key, count,
                         max_steps);
  return parts;
}

struct TokenizerState {
  TokenizerParts parts;
  bool byte_level;
  // By id: the text that decode() starts from. As in Hugging Face's tokenizers, it is the
  // normalized content of an added token whose `normalized` is true, and parts.tokens for every
  // other token.
  std::vector<std::string> names;
  std::vector<std::string> bytes;        // by id: the bytes that the token adds within a text
  std::array<int32_t, 256> id_of_byte;   // byte-level, or the tokens of byte_fallback; -1: none
  std::vector<int32_t> id_of_character;  // by code point; -1: none
  std::unordered_map<std::string_view, int32_t> id_of;  // by bytes; for ignore_merges only
  MergeTable merges;
  PreTokenizer pre_tokenizer;
  TokenDecoder decoder;         // for tokens of characters
  AddedTokens raw, normalized;  // searched in this order

  TokenizerState(TokenizerParts given, const std::string& where);

  /// Appends the ids of a word's symbols, its bytes or characters. `sizes` (optional) gets the
  /// number of bytes of each.
  void append_symbols(std::string_view word, std::vector<int32_t>& ids,
                      std::vector<size_t>* sizes = nullptr) const;
  /// The number of bytes of a token that merges have made.
  size_t size_of(int32_t id) const {
    return (byte_level ? bytes : parts.tokens)[static_cast<size_t>(id)].size();
  }

 private:
  void check(const std::string& where) const;
  void find_bytes();
  void find_characters();
  int32_t character_id(char32_t code) const {
    return code < id_of_character.size() ? id_of_character[code] : -1;
  }
};

TokenizerState::TokenizerState(TokenizerParts given, const std::string& where)
    : parts(with_few_steps(std::move(given), where)),
      byte_level(is_byte_level(parts)),
      merges(parts.merges),
      pre_tokenizer(parts.pre_tokenizers, where + ": pre_tokenizer"),
      decoder(parts.decoders, where + ": decoder") {
  check(where);
  names = parts.tokens;
  for (const AddedToken& token : parts.added)
    if (token.normalized)
      names[static_cast<size_t>(token.id)] = models::normalized(token.content, parts.normalizers);
  for (const AddedToken& token : parts.added)
    if (const size_t bytes = names[static_cast<size_t>(token.id)].size();
        bytes > max_added_token_bytes)
      raise<Unsupported>(
          "{}: added_tokens: the token {} has {} bytes; expected at most {} "
          "(max_added_token_bytes)",
          where, token.id, bytes, max_added_token_bytes);
  id_of_byte.fill(-1);
  bytes.reserve(parts.tokens.size());
  byte_level ? find_bytes() : find_characters();
  raw = AddedTokens(parts.added, false, {});
  normalized = AddedTokens(parts.added, true, parts.normalizers);
}

void TokenizerState::check(const std::string& where) const {
  const auto known = [&](int32_t id) {
    return id >= 0 && static_cast<size_t>(id) < parts.tokens.size();
  };
  for (const Merge& merge : parts.merges)
    if (!known(merge.left) || !known(merge.right) || !known(merge.result))
      raise<FileError>("{}: a merge of tokens {} and {} to {}; expected ids below {}", where,
                       merge.left, merge.right, merge.result, parts.tokens.size());
  for (const AddedToken& token : parts.added) {
    if (token.content.empty()) throw FileError(where + ": added_tokens: one is empty");
    if (!known(token.id) || parts.tokens[static_cast<size_t>(token.id)] != token.content)
      raise<FileError>("{}: added_tokens: '{}' is not the token {} of the vocabulary", where,
                       token.content, token.id);
  }
  for (const std::vector<int32_t>* ids : {&parts.around.before, &parts.around.after})
    for (const int32_t id : *ids)
      if (!known(id))
        raise<FileError>("{}: post_processor: token {}; expected ids below {}", where, id,
                         parts.tokens.size());
  if (parts.unknown && !known(*parts.unknown))
    raise<FileError>("{}: model.unk_token: token {}; expected ids below {}", where, *parts.unknown,
                     parts.tokens.size());
  // A step that puts text before each piece is checked as one that replaces a space by a longer
  // text.
  std::vector<ReplaceStep> growth;
  for (const NormalizerStep& step : parts.normalizers) {
    if (const auto* replace = std::get_if<ReplaceStep>(&step)) growth.push_back(*replace);
    if (const auto* prepend = std::get_if<PrependStep>(&step))
      growth.push_back({.text = " ", .by = prepend->text + " "});
  }
  check_growth(growth, where + ": normalizer");
  for (const PreTokenizerStep& step : parts.pre_tokenizers)
    if (const auto* metaspace = std::get_if<MetaspaceStep>(&step))
      growth.push_back(
          {.text = " ",
           .by = metaspace->replacement + (metaspace->prepend == MetaspaceStep::Prepend::always
                                               ? metaspace->replacement
                                               : "")});
  check_growth(growth, where + ": pre_tokenizer");
}

void TokenizerState::find_bytes() {
  // decode() writes added tokens unchanged, except those that a merge also produces: these are
  // decoded to bytes.
  std::vector<bool> literal(parts.tokens.size()), in_model(parts.tokens.size(), true);
  for (const AddedToken& token : parts.added) {
    literal[static_cast<size_t>(token.id)] = true;
    in_model[static_cast<size_t>(token.id)] = token.in_model;
  }
  for (const Merge& merge : parts.merges) literal[static_cast<size_t>(merge.result)] = false;
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    const auto decoded = from_alphabet(parts.tokens[id]);
    const bool is_byte = decoded && decoded->size() == 1 && in_model[id];
    bytes.push_back(decoded && (is_byte || !literal[id]) ? *decoded : names[id]);
    if (is_byte)
      id_of_byte[static_cast<unsigned char>(decoded->front())] = static_cast<int32_t>(id);
    if (decoded && parts.ignore_merges && in_model[id] && *decoded == bytes.back())
      id_of.emplace(bytes.back(), static_cast<int32_t>(id));
  }
}

void TokenizerState::find_characters() {
  std::vector<bool> in_model(parts.tokens.size(), true);
  for (const AddedToken& token : parts.added)
    in_model[static_cast<size_t>(token.id)] = token.in_model;
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    const std::string& token = parts.tokens[id];
    bytes.push_back(decoder.piece(names[id], false));
    if (!in_model[id]) continue;
    const auto number = static_cast<int32_t>(id);
    if (parts.ignore_merges) id_of.emplace(token, number);
    if (const auto byte = byte_of_token(token);
        byte && parts.byte_fallback && token == fmt::format("<0x{:02X}>", *byte))
      id_of_byte[*byte] = number;
    if (token.empty() || token.size() > longest_utf8 || valid_utf8(token) < token.size()) continue;
    size_t at = 0;
    const char32_t code = next_code_point(token, at, "");
    if (at < token.size()) continue;
    if (code >= id_of_character.size()) id_of_character.resize(code + 1, -1);
    id_of_character[code] = number;
  }
}

// An unknown symbol is appended only before the next known one or at the end, so that several can
// be fused. As in Hugging Face's tokenizers, tokens of byte_fallback come before an unknown symbol
// that is not appended yet.
void TokenizerState::append_symbols(std::string_view word, std::vector<int32_t>& ids,
                                    std::vector<size_t>* sizes) const {
  size_t waiting = 0;  // number of bytes of the unknown token that is not appended yet
  const auto push = [&](int32_t id, size_t size) {
    ids.push_back(id);
    if (sizes) sizes->push_back(size);
  };
  const auto add_unknown = [&] {
    if (waiting > 0) push(*parts.unknown, waiting);
    waiting = 0;
  };
  const auto add = [&](int32_t id, std::string_view own_bytes) {
    if (id >= 0) {
      add_unknown();
      return push(id, own_bytes.size());
    }
    const auto byte_id = [&](char byte) { return id_of_byte[static_cast<unsigned char>(byte)]; };
    if (!byte_level && std::ranges::all_of(own_bytes, [&](char b) { return byte_id(b) >= 0; })) {
      for (const char byte : own_bytes) push(byte_id(byte), 1);
      return;
    }
    if (!parts.unknown) return;
    if (!parts.fuse_unknown) add_unknown();
    waiting += own_bytes.size();
  };
  if (byte_level) {
    for (size_t i = 0; i < word.size(); ++i)
      add(id_of_byte[static_cast<unsigned char>(word[i])], word.substr(i, 1));
    return add_unknown();
  }
  for (size_t at = 0; at < word.size();) {
    const size_t valid = at + valid_utf8(word.substr(at));
    while (at < valid) {
      const size_t begin = at;
      const char32_t code = next_code_point(word, at, "");
      add(character_id(code), word.substr(begin, at - begin));
    }
    if (at < word.size()) add(-1, word.substr(at, 1)), ++at;
  }
  add_unknown();
}

namespace {

/// The state of one call of encode().
class Encoder {
 public:
  /// `spans` (optional) gets the spans of the tokens.
  Encoder(const TokenizerState& state, std::vector<int32_t>& ids,
          std::vector<TextSpan>* spans = nullptr)
      : state_(state), ids_(ids), spans_(spans) {}

  void text(std::string_view text) {
    std::vector<TextSpan> characters;
    if (spans_) {
      for (size_t at = 0; at < text.size();) {
        const size_t size = character_size(text, at);
        characters.insert(characters.end(), size, {at, at + size});
        at += size;
      }
    }
    const PreTokenizer::OnWord word = [&](const TracedView& part) {
      const size_t first = ids_.size();
      this->word(part.text);
      if (spans_) add_spans(part, first);
    };
    const TracedView whole(text, spans_ ? characters.data() : nullptr);
    const auto token_in = [&](const TracedView& all) {
      return [this, all](int32_t id, std::string_view part) {
        ids_.push_back(id);
        if (spans_) add_span(all.at(part), 0, part.size());
      };
    };
    state_.raw.split(
        text,
        [&](std::string_view part) {
          const bool begins = part.data() == text.data();
          TracedView piece = whole.at(part);
          if (!state_.parts.normalizers.empty()) {
            normalize(owned_.emplace_back(piece.copy()), state_.parts.normalizers);
            piece = owned_.back();
          }
          state_.normalized.split(
              piece.text,
              [&](std::string_view plain) {
                state_.pre_tokenizer.for_words(
                    piece.at(plain), begins && plain.data() == piece.text.data(), owned_, word);
              },
              token_in(piece));
        },
        token_in(whole));
  }

 private:
  void add_span(const TracedView& part, size_t begin, size_t end) {
    spans_->push_back({part.origins[begin].begin, part.origins[end - 1].end});
  }

  // A token of the word is one symbol, or several symbols that merges have joined.
  void add_spans(const TracedView& word, size_t first) {
    if (state_.id_of.contains(word.text)) return add_span(word, 0, word.text.size());
    std::vector<int32_t> symbols;
    std::vector<size_t> sizes;
    state_.append_symbols(word.text, symbols, &sizes);
    size_t at = 0, symbol = 0;
    for (size_t i = first; i < ids_.size(); ++i) {
      const size_t begin = at;
      const bool is_symbol = ids_[i] == symbols[symbol];
      do at += sizes[symbol++];
      while (!is_symbol && symbol < sizes.size() && at - begin < state_.size_of(ids_[i]));
      add_span(word, begin, at);
    }
  }

  void word(std::string_view bytes) {
    if (state_.byte_level && bytes.size() == 1)
      if (const int32_t id = state_.id_of_byte[static_cast<unsigned char>(bytes.front())]; id >= 0)
        return ids_.push_back(id);
    const WordCache::Key key = WordCache::key_of(bytes);
    if (const auto known = cache_.find(key); !known.empty())
      return void(ids_.insert(ids_.end(), known.begin(), known.end()));
    tokens_.clear();
    const auto whole = state_.id_of.find(bytes);
    if (whole != state_.id_of.end()) {
      tokens_.push_back(whole->second);
    } else {
      state_.append_symbols(bytes, tokens_);
      state_.merges.apply(tokens_, scratch_);
    }
    if (!tokens_.empty()) cache_.add(key, tokens_);
    ids_.insert(ids_.end(), tokens_.begin(), tokens_.end());
  }

  const TokenizerState& state_;
  std::vector<int32_t>& ids_;
  std::vector<TextSpan>* const spans_;
  WordCache cache_;
  MergeScratch scratch_;
  std::vector<int32_t> tokens_;
  std::deque<TracedText> owned_;  // the strings that cache_ refers to
};

}  // namespace

Tokenizer::Tokenizer(TokenizerParts parts, const std::string& where)
    : state_(std::make_shared<const TokenizerState>(std::move(parts), where)),
      vocabulary_(std::ssize(state_->bytes)) {}

int64_t Tokenizer::vocabulary() const { return vocabulary_; }
Tokenizer Tokenizer::limited_to(int64_t vocabulary) const {
  Tokenizer limited = *this;
  limited.vocabulary_ = std::min(vocabulary_, vocabulary);
  return limited;
}
const TokenizerParts& Tokenizer::parts() const { return state_->parts; }

void Tokenizer::check_ids(const std::vector<int32_t>& ids) const {
  if (vocabulary_ == std::ssize(state_->bytes)) return;
  const auto beyond = std::ranges::find_if(ids, [this](int32_t id) { return id >= vocabulary_; });
  if (beyond == ids.end()) return;
  const std::string before = decode({ids.begin(), beyond});
  raise<ConfigError>(
      "'{}' in line {} of the text is the token {}; expected tokens below {}, the "
      "model's vocabulary",
      printable(state_->parts.tokens[static_cast<size_t>(*beyond)]),
      1 + std::ranges::count(before, '\n'), *beyond, vocabulary_);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  Encoder(*state_, ids).text(text);
  check_ids(ids);
  return ids;
}

EncodedText Tokenizer::encode_with_spans(std::string_view text) const {
  EncodedText encoded;
  Encoder(*state_, encoded.ids, &encoded.spans).text(text);
  check_ids(encoded.ids);
  return encoded;
}

std::vector<int32_t> Tokenizer::encode_document(std::string_view text) const {
  const TextTemplate& around = state_->parts.around;
  std::vector<int32_t> ids = around.before;
  Encoder(*state_, ids).text(text);
  ids.insert(ids.end(), around.after.begin(), around.after.end());
  check_ids(ids);
  return ids;
}

namespace {

void check_id(int32_t id, int64_t vocabulary) {
  if (id < 0 || id >= vocabulary)
    raise<ConfigError>("decode: expected ids below {}, got {}", vocabulary, id);
}

}  // namespace

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  for (const int32_t id : ids) check_id(id, vocabulary());
  if (!state_->byte_level) {
    std::vector<std::string> tokens;
    for (const int32_t id : ids) tokens.push_back(state_->names[static_cast<size_t>(id)]);
    return state_->decoder.decode(std::move(tokens));
  }
  std::string text;
  for (const int32_t id : ids) text += state_->bytes[static_cast<size_t>(id)];
  return text;
}

std::string Tokenizer::decode_one(int32_t id, bool is_first) const {
  check_id(id, vocabulary());
  const auto index = static_cast<size_t>(id);
  return is_first && !state_->byte_level ? state_->decoder.piece(state_->names[index], true)
                                         : state_->bytes[index];
}

std::optional<int32_t> Tokenizer::id_of_added(std::string_view content) const {
  for (const AddedToken& token : state_->parts.added)
    if (token.content == content) return token.id;
  return std::nullopt;
}

}  // namespace zg::models
