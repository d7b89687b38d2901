#include "zerograd/models/tokenizer/split_pattern.h"

#include <algorithm>
#include <array>
#include <limits>
#include <new>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "zerograd/models/tokenizer/tokenizer.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {

const char* const gpt2_split_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

constexpr int max_depth = 16;               // nesting depth of groups
constexpr size_t max_pattern_bytes = 4096;  // bytes
constexpr int max_repeats = 1000;           // sum of the largest counts of all {n,m}
// PCRE2's own \s also matches U+180E, which is not in White_Space since Unicode 6.3.
constexpr const char* white_space =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::array<std::string_view, 37> categories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co", "Cs"};

std::string literal(char32_t code) {
  return fmt::format("\\x{{{:x}}}", static_cast<unsigned>(code));
}

class Translation {
 public:
  Translation(const std::string& pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string whole() {
    if (pattern_.size() > max_pattern_bytes)
      raise<Unsupported>("{}: a pattern of {} bytes; expected at most {} (max_pattern_bytes)",
                         where_, pattern_.size(), max_pattern_bytes);
    alternatives(0);
    if (at_ < pattern_.size()) refuse("')' without its '('");
    return std::move(out_);
  }

 private:
  bool has(std::string_view text) const {
    return std::string_view(pattern_).substr(at_).starts_with(text);
  }
  bool take(std::string_view text) {
    if (!has(text)) return false;
    at_ += text.size();
    return true;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    raise<Unsupported>(
        "{}: {} at byte {} of the pattern; models/tokenizer/split_pattern.h lists what "
        "this version supports",
        where_, what, at_);
  }
  char32_t character() {
    if (at_ == pattern_.size()) refuse("an end too soon");
    return next_code_point(pattern_, at_, where_);
  }

  void alternatives(int depth) {
    while (at_ < pattern_.size() && !has(")")) {
      if (take("|"))
        out_ += '|';
      else
        quantified(depth);
    }
  }

  void quantified(int depth) {
    const bool one_character = !has("(");
    if (one_character)
      atom();
    else
      group(depth + 1);
    quantifier(one_character);
  }

  void group(int depth) {
    if (depth > max_depth)
      refuse(fmt::format("groups nested deeper than {} (max_depth)", max_depth));
    ++at_;
    if (take("?:") || !has("?"))
      out_ += "(?:";
    else if (take("?i:"))
      out_ += "(?i:";
    else if (take("?!"))
      out_ += "(?!";
    else if (take("?="))
      out_ += "(?=";
    else
      refuse("an unsupported kind of group");
    alternatives(depth);
    if (!take(")")) refuse("'(' without its ')'");
    out_ += ')';
  }

  void atom() {
    if (take("[")) return character_class();
    if (take("."))
      out_ += "[^\\n]";
    else if (take("\\"))
      escape(false);
    else if (has("*") || has("+") || has("?") || has("{") || has("^") || has("$"))
      refuse(fmt::format("'{}'", pattern_.substr(at_, 1)));
    else
      out_ += literal(character());
  }

  // Parses an escape. Outside of classes, an escape for several characters becomes a class.
  void escape(bool in_class) {
    const auto set = [&](const char* begin, const std::string& members) {
      out_ += in_class ? members : begin + members + "]";
    };
    if (take("s")) return set("[", white_space);
    if (take("d")) return set("[", "\\p{Nd}");
    if (take("D")) return set("[", "\\P{Nd}");
    if (take("S")) {
      if (in_class) refuse("\\S in a class");
      return set("[^", white_space);
    }
    if (has("p{") || has("P{")) return set("[", category());
    out_ += literal(escaped());
  }

  std::string category() {
    const char kind = pattern_[at_];
    at_ += 2;
    const size_t end = pattern_.find('}', at_);
    const std::string name = pattern_.substr(at_, end == std::string::npos ? end : end - at_);
    if (end == std::string::npos || std::ranges::find(categories, name) == categories.end())
      refuse("\\p without a general category");
    at_ = end + 1;
    return fmt::format("\\{}{{{}}}", kind, name);
  }

  char32_t escaped() {
    if (take("n")) return '\n';
    if (take("r")) return '\r';
    if (take("t")) return '\t';
    const char32_t code = character();
    const bool alphanumeric = (code >= '0' && code <= '9') || (code >= 'A' && code <= 'Z') ||
                              (code >= 'a' && code <= 'z');
    if (alphanumeric || code >= 0x80) refuse("an unsupported escape, ending");
    return code;
  }

  void character_class() {
    out_ += take("^") ? "[^" : "[";
    members();
    out_ += ']';
  }

  // A nested class is a union with the class around it.
  void members(int depth = 0) {
    if (has("]")) refuse("an empty class, or ']' as its first member");
    while (!take("]")) {
      if (has("&&") || has("[:") || has("[^"))
        refuse(fmt::format("'{}' in a class", pattern_.substr(at_, 2)));
      if (take("[")) {
        if (depth == max_depth)
          refuse(fmt::format("classes nested deeper than {} (max_depth)", max_depth));
        members(depth + 1);
      } else {
        member();
      }
    }
  }

  void member() {
    char32_t first;
    if (take("\\")) {
      if (has("s") || has("S") || has("d") || has("D") || has("p{") || has("P{")) {
        escape(true);
        if (has("-") && !has("-]")) refuse("a range from many characters");
        return;
      }
      first = escaped();
    } else {
      first = character();
    }
    out_ += literal(first);
    if (!has("-") || has("-]")) return;
    ++at_;
    if (has("[")) refuse("a range to a class");
    const char32_t last = take("\\") ? escaped() : character();
    if (last < first) refuse("a range that ends before it begins, ending");
    out_ += '-' + literal(last);
  }

  void quantifier(bool one_character) {
    if (at_ == pattern_.size()) return;
    const size_t begin = at_;
    if (take("{")) {
      const int minimum = count();
      int maximum = minimum;
      if (take(",") && !has("}") && (maximum = count()) < minimum)
        refuse("a range of counts downwards, ending");
      if ((repeats_ += maximum) > max_repeats)
        refuse(fmt::format("counts that add up to more than {} (max_repeats)", max_repeats));
      if (!take("}")) refuse("a count without its '}'");
    } else if (!take("?") && !take("*") && !take("+")) {
      return;
    }
    // Matching a repeated group may take exponential time.
    if (!one_character && pattern_[begin] != '?') {
      at_ = begin;
      refuse("a group that repeats");
    }
    if (has("?") || has("+") || has("*") || has("{")) refuse("a quantifier of a quantifier");
    out_.append(pattern_, begin, at_ - begin);
  }

  int count() {
    int number = 0;
    const size_t begin = at_;
    for (; at_ < pattern_.size() && pattern_[at_] >= '0' && pattern_[at_] <= '9'; ++at_) {
      number = 10 * number + (pattern_[at_] - '0');
      if (number > max_repeats) refuse(fmt::format("a count beyond {}", max_repeats));
    }
    if (at_ == begin) refuse("a count without a number");
    return number;
  }

  const std::string& pattern_;
  const std::string& where_;
  size_t at_ = 0;
  int repeats_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre2_pattern(const std::string& oniguruma, const std::string& where) {
  return Translation(oniguruma, where).whole();
}

std::string literal_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("\\|()[]{}.*+?^$-&~#").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

bool is_white_space(char32_t code) {
  return (code >= '\t' && code <= '\r') || code == ' ' || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
         code == 0x202f || code == 0x205f || code == 0x3000;
}

namespace {

// Most words are matched within few_bytes, by at most few_steps of backtracking from one position.
// Further steps have a limit for the whole text, so that the time is linear in its bytes.
constexpr size_t few_bytes = 128;
constexpr size_t few_steps = 256, most_steps = std::numeric_limits<uint32_t>::max();
constexpr size_t max_match_steps = 64;  // for each byte of a text

std::string reason(int error) {
  PCRE2_UCHAR text[128];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

std::string configured(uint32_t what) {
  char text[64] = "";  // PCRE2 needs at least 24 bytes
  pcre2_config(what, text);
  return text;
}

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct SplitterCode {
  pcre2_code* code = nullptr;
  bool jit = false;

  SplitterCode() = default;
  SplitterCode(const SplitterCode&) = delete;
  ~SplitterCode() { pcre2_code_free(code); }
};

struct SplitterState {
  std::shared_ptr<const SplitterCode> code;
  std::string where;
  pcre2_match_data* data;
  pcre2_match_context* context;

  explicit SplitterState(std::shared_ptr<const SplitterCode> shared, std::string place)
      : code(std::move(shared)),
        where(std::move(place)),
        data(pcre2_match_data_create_from_pattern(code->code, nullptr)),
        context(pcre2_match_context_create(nullptr)) {
    if (!data || !context) {
      pcre2_match_data_free(data);
      pcre2_match_context_free(context);
      throw std::bad_alloc();
    }
  }
  SplitterState(const SplitterState&) = delete;
  ~SplitterState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
};

Splitter::Splitter(const std::string& pattern, const std::string& where) : where_(where) {
  const std::string translated = pcre2_pattern(pattern, where);
  auto code = std::make_shared<SplitterCode>();
  int error = 0;
  PCRE2_SIZE place = 0;
  // next_valid_range() checks the text's UTF-8 once, so a match need not.
  code->code = pcre2_compile(units(translated), translated.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error, &place, nullptr);
  if (!code->code) raise<Unsupported>("{}: PCRE2 refuses the pattern: {}", where, reason(error));
  uint32_t matches_nothing = 0;
  pcre2_pattern_info(code->code, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing)
    throw Unsupported(where + ": the pattern may match an empty text; expected one that does not");
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
  code_ = std::move(code);
}

Splitter::Pieces::Pieces(const Splitter& splitter, std::string_view text)
    : text_(text),
      steps_left_(max_match_steps * (text.size() + few_bytes)),
      state_(std::make_unique<SplitterState>(splitter.code_, splitter.where_)) {}
Splitter::Pieces::~Pieces() = default;

void Splitter::Pieces::next_valid_range() {
  valid_end_ = at_ + valid_utf8(text_.substr(at_));
  match_ = match_end_ = at_;
  if (valid_end_ > at_) return match();
  // A run of invalid UTF-8 extends to the next valid character.
  do {
    ++match_;
  } while (match_ < text_.size() && valid_utf8(text_.substr(match_, longest_utf8)) == 0);
  valid_end_ = match_end_ = match_;
}

// Searches about `bytes` bytes from `begin`. PCRE2_ERROR_NOMATCH: no match begins in them; `begin`
// becomes their end. PCRE2_ERROR_PARTIAL: a match that begins in them may need more bytes; `begin`
// becomes the begin of that match.
int Splitter::Pieces::search(size_t& begin, size_t bytes, size_t steps, uint32_t options) {
  size_t end = valid_end_;
  if (bytes < valid_end_ - begin) {
    options |= PCRE2_PARTIAL_HARD;
    for (end = begin + bytes; end < valid_end_ && is_continuation(text_[end]);) ++end;
  }
  pcre2_set_match_limit(state_->context, static_cast<uint32_t>(std::min(steps, most_steps)));
  // PCRE2's JIT does not support PCRE2_ANCHORED.
  const auto run = state_->code->jit && !(options & PCRE2_ANCHORED) ? pcre2_jit_match : pcre2_match;
  const int result = run(state_->code->code, units(text_), end, begin, options | PCRE2_NO_UTF_CHECK,
                         state_->data, state_->context);
  if (result == PCRE2_ERROR_NOMATCH) begin = end;
  if (result == PCRE2_ERROR_PARTIAL) begin = pcre2_get_ovector_pointer(state_->data)[0];
  return result;
}

// Tries each position in turn, and doubles bytes and steps until they suffice. So the number of
// steps is known, and steps_left_ limits it for the whole text.
int Splitter::Pieces::search_slowly(size_t begin) {
  const auto needs_more = [](int result) {
    return result == PCRE2_ERROR_PARTIAL || result == PCRE2_ERROR_MATCHLIMIT;
  };
  int result = PCRE2_ERROR_NOMATCH;
  while (result == PCRE2_ERROR_NOMATCH && begin < valid_end_) {
    size_t seen = begin, times = 1;
    while (needs_more(
        result = search(seen = begin, times * few_bytes, times * few_steps, PCRE2_ANCHORED))) {
      times *= 2;
      if (times * few_steps > steps_left_) return PCRE2_ERROR_MATCHLIMIT;
      steps_left_ -= times * few_steps;
    }
    do {
      ++begin;
    } while (begin < valid_end_ && is_continuation(text_[begin]));
  }
  return result;
}

void Splitter::Pieces::match() {
  size_t seen = at_;
  int result;
  do {
    result = search(seen, few_bytes, few_steps, 0);
  } while (result == PCRE2_ERROR_NOMATCH && seen < valid_end_);
  if (result == PCRE2_ERROR_PARTIAL || result == PCRE2_ERROR_MATCHLIMIT)
    result = search_slowly(seen);
  if (result > 0) {
    const PCRE2_SIZE* places = pcre2_get_ovector_pointer(state_->data);
    match_ = places[0];
    match_end_ = places[1];
  } else if (result == PCRE2_ERROR_NOMATCH) {
    match_ = match_end_ = valid_end_;
  } else {
    raise<ConfigError>(
        "{}: the pattern cannot be matched at byte {} of the text: {}; expected at most {} steps "
        "for each byte of a text (max_match_steps); try a pattern that does not see the same bytes "
        "again from each place, or shorter runs of one character",
        state_->where, at_, reason(result), max_match_steps);
  }
}

bool Splitter::Pieces::next(std::string_view& piece) {
  if (at_ == text_.size()) return false;
  if (at_ == valid_end_)
    next_valid_range();
  else if (at_ == match_end_)
    match();
  const size_t begin = at_;
  is_match_ = begin == match_;
  at_ = is_match_ ? match_end_ : match_;
  piece = text_.substr(begin, at_ - begin);
  return true;
}

bool is_word_character(char32_t code_point) {
  static const auto code = [] {
    const std::string_view pattern = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]";
    int error = 0;
    PCRE2_SIZE place = 0;
    auto compiled = std::make_unique<SplitterCode>();
    compiled->code =
        pcre2_compile(units(pattern), pattern.size(), PCRE2_UTF, &error, &place, nullptr);
    if (!compiled->code)
      raise<Unsupported>(
          "single_word: PCRE2 {} has no word characters ({}); expected version 10.40 or later",
          configured(PCRE2_CONFIG_VERSION), reason(error));
    return compiled;
  }();
  const std::string character = utf8(code_point);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  if (!data) throw std::bad_alloc();
  return pcre2_match(code->code, units(character), character.size(), 0, 0, data.get(), nullptr) > 0;
}

std::string pattern_tables() {
  return fmt::format("{} (PCRE2 {})", configured(PCRE2_CONFIG_UNICODE_VERSION),
                     configured(PCRE2_CONFIG_VERSION));
}

}  // namespace zg::models
