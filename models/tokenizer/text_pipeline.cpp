#include "zerograd/models/tokenizer/text_pipeline.h"

#include <algorithm>
#include <cstring>

#include "zerograd/runtime/error.h"
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
  std::ranges::stable_sort(tokens_, [](const AddedToken& a, const AddedToken& b) {
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

using Behavior = SplitStep::Behavior;

PreTokenizer::PreTokenizer(std::span<const PreTokenizerStep> steps, const std::string& where) {
  for (const PreTokenizerStep& step : steps) {
    if (const auto* split = std::get_if<SplitStep>(&step)) {
      if (split->pattern.empty())
        throw FileError(where + ": an empty pattern; expected one that matches characters");
      add_split(*split, where, {});
    } else if (const auto* digits = std::get_if<DigitsStep>(&step)) {
      add_split({.pattern = digits->individual ? "\\p{N}" : "\\p{N}+"}, where, {});
    } else if (const auto* bytes = std::get_if<ByteLevelStep>(&step)) {
      if (&step != &steps.back())
        throw Unsupported(where + ": ByteLevel before another step; expected it as the last one");
      Stage stage;
      if (bytes->add_prefix_space) stage.prefix = *bytes;
      if (bytes->use_regex)
        add_split({.pattern = gpt2_split_pattern}, where, std::move(stage));
      else if (stage.prefix)
        stages_.push_back(std::move(stage));
    } else {
      const auto& metaspace = std::get<MetaspaceStep>(step);
      Stage stage{.metaspace = metaspace};
      if (metaspace.split)
        add_split({.pattern = metaspace.replacement,
                   .is_literal = true,
                   .behavior = Behavior::merged_with_next},
                  where, std::move(stage));
      else
        stages_.push_back(std::move(stage));
    }
  }
}

void PreTokenizer::add_split(const SplitStep& step, const std::string& where, Stage stage) {
  stage.splitter.emplace(step.is_literal ? literal_pattern(step.pattern) : step.pattern, where);
  stage.behavior = step.behavior;
  stage.invert = step.invert;
  stages_.push_back(std::move(stage));
}

struct PreTokenizer::Call {
  const char* begin;  // where the whole text begins; null: before the text of this call
  std::deque<TracedText>& owned;
  const OnWord& on_word;
};

namespace {

struct Piece {
  std::string_view text;
  bool is_match;
};

std::string_view joined(std::string_view a, std::string_view b) {  // b follows a
  return {a.data(), a.size() + b.size()};
}

// Joins pieces as SplitDelimiterBehavior of Hugging Face's tokenizers does. run() implements
// `isolated` and `removed`, which need no list of pieces.
std::vector<std::string_view> joined_pieces(const std::vector<Piece>& pieces, Behavior behavior) {
  std::vector<std::string_view> words;
  bool previous_match = false;
  if (behavior == Behavior::merged_with_next) {
    for (size_t i = pieces.size(); i-- > 0;) {
      const Piece& piece = pieces[i];
      if (piece.is_match && !previous_match && !words.empty())
        words.back() = joined(piece.text, words.back());
      else
        words.push_back(piece.text);
      previous_match = piece.is_match;
    }
    std::ranges::reverse(words);
    return words;
  }
  for (const Piece& piece : pieces) {
    const bool joins = behavior == Behavior::contiguous ? piece.is_match == previous_match
                                                        : piece.is_match && !previous_match;
    if (joins && !words.empty())
      words.back() = joined(words.back(), piece.text);
    else
      words.push_back(piece.text);
    previous_match = piece.is_match;
  }
  return words;
}

}  // namespace

// The text to split: the stage has added or replaced characters.
TracedView PreTokenizer::changed(const Stage& stage, const TracedView& text,
                                 const Call& call) const {
  const bool prefixed = stage.prefix && text.text.front() != ' ';
  if (!prefixed && !stage.metaspace) return text;
  TracedText& own = call.owned.emplace_back(text.copy());
  if (prefixed) {
    prepend(own, " ");
    return own;
  }
  const MetaspaceStep& step = *stage.metaspace;
  replace(own, {.text = " ", .by = step.replacement});
  const bool adds =
      step.prepend == MetaspaceStep::Prepend::always ||
      (step.prepend == MetaspaceStep::Prepend::first && text.text.data() == call.begin);
  if (adds && !own.text.starts_with(step.replacement)) prepend(own, step.replacement);
  return own;
}

void PreTokenizer::run(size_t number, const TracedView& text, const Call& call) const {
  if (number == stages_.size()) return call.on_word(text);
  const Stage& stage = stages_[number];
  const TracedView whole = changed(stage, text, call);
  // If the text is at the begin of the whole text, its changed copy is too.
  const Call inner = {text.text.data() == call.begin ? whole.text.data() : nullptr, call.owned,
                      call.on_word};
  if (!stage.splitter) return run(number + 1, whole, inner);
  Splitter::Pieces pieces(*stage.splitter, whole.text);
  std::string_view piece;
  if (stage.behavior == Behavior::isolated || stage.behavior == Behavior::removed) {
    const bool is_last = number + 1 == stages_.size();
    while (pieces.next(piece)) {
      if (stage.behavior == Behavior::removed && pieces.is_match() != stage.invert) continue;
      is_last ? call.on_word(whole.at(piece)) : run(number + 1, whole.at(piece), inner);
    }
    return;
  }
  std::vector<Piece> all;
  while (pieces.next(piece)) all.push_back({piece, pieces.is_match() != stage.invert});
  for (const std::string_view word : joined_pieces(all, stage.behavior))
    run(number + 1, whole.at(word), inner);
}

void PreTokenizer::for_words(const TracedView& text, bool begins_text,
                             std::deque<TracedText>& owned, const OnWord& on_word) const {
  if (!text.text.empty()) run(0, text, {begins_text ? text.text.data() : nullptr, owned, on_word});
}

std::optional<unsigned char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  int byte = 0;
  for (size_t i = 3; i < 5; ++i) {
    const char c = token[i];
    // Rust's from_str_radix, which reads these tokens in Hugging Face's decoder, accepts a sign.
    if (i == 3 && c == '+') continue;
    const bool digit = c >= '0' && c <= '9';
    const bool upper = c >= 'A' && c <= 'F', lower = c >= 'a' && c <= 'f';
    if (!digit && !upper && !lower) return std::nullopt;
    byte = 16 * byte + (digit ? c - '0' : c - (upper ? 'A' : 'a') + 10);
  }
  return static_cast<unsigned char>(byte);
}

namespace {

std::string readable_bytes(const std::string& bytes) {
  if (valid_utf8(bytes) == bytes.size()) return bytes;
  std::string out;
  for (size_t i = 0; i < bytes.size(); ++i) out += utf8(0xfffd);
  return out;
}

std::string stripped(const std::string& token, const StripStep& step) {
  std::string_view left = token;
  for (int64_t i = 0; i < step.start && left.starts_with(step.content); ++i)
    left.remove_prefix(step.content.size());
  for (int64_t i = 0; i < step.stop && left.ends_with(step.content); ++i)
    left.remove_suffix(step.content.size());
  return std::string(left);
}

// Replaces the character by a space. From the first token it is removed, unless `prepend` is never.
std::string without_metaspace(const std::string& token, const MetaspaceStep& step, bool is_first) {
  const bool removes = is_first && step.prepend != MetaspaceStep::Prepend::never;
  return replaced(token, {.text = step.replacement, .by = removes ? "" : " "});
}

struct Decode {
  std::vector<std::string> tokens;

  void operator()(const ReplaceStep& step) {
    for (std::string& token : tokens) token = replaced(token, step);
  }
  void operator()(const ByteFallbackStep&) {
    std::vector<std::string> out;
    std::string bytes;
    const auto end_bytes = [&] {
      if (!bytes.empty()) out.push_back(readable_bytes(bytes));
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const auto byte = byte_of_token(token)) {
        bytes += static_cast<char>(*byte);
      } else {
        end_bytes();
        out.push_back(std::move(token));
      }
    }
    end_bytes();
    tokens = std::move(out);
  }
  void operator()(const FuseStep&) {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens = {std::move(all)};
  }
  void operator()(const StripStep& step) {
    for (std::string& token : tokens) token = stripped(token, step);
  }
  void operator()(const MetaspaceStep& step) {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = without_metaspace(tokens[i], step, i == 0);
  }
};

// Decodes one token without its neighbours, as the first token of a text or as a later one.
struct DecodeOne {
  std::string token;
  bool is_first;
  bool fused = false;

  void operator()(const ReplaceStep& step) { token = replaced(token, step); }
  void operator()(const ByteFallbackStep&) {
    if (const auto byte = byte_of_token(token)) token = std::string(1, static_cast<char>(*byte));
  }
  void operator()(const FuseStep&) { fused = true; }
  void operator()(const StripStep& step) {
    StripStep here = step;
    if (fused && !is_first) here.start = 0;
    if (fused) here.stop = 0;  // which token is the last is not known
    token = stripped(token, here);
  }
  void operator()(const MetaspaceStep& step) { token = without_metaspace(token, step, is_first); }
};

}  // namespace

TokenDecoder::TokenDecoder(std::span<const DecoderStep> steps, const std::string& where)
    : steps_(steps.begin(), steps.end()) {
  std::vector<ReplaceStep> replacements;
  for (const DecoderStep& step : steps_)
    if (const auto* replace = std::get_if<ReplaceStep>(&step)) replacements.push_back(*replace);
  check_growth(replacements, where);
}

std::string TokenDecoder::decode(std::vector<std::string> tokens) const {
  Decode decode{std::move(tokens)};
  for (const DecoderStep& step : steps_) std::visit(decode, step);
  decode(FuseStep());
  return std::move(decode.tokens.front());
}

std::string TokenDecoder::piece(const std::string& token, bool is_first) const {
  DecodeOne decode{token, is_first};
  for (const DecoderStep& step : steps_) std::visit(decode, step);
  return std::move(decode.token);
}

}  // namespace zg::models
