#include "zerograd/models/tokenizer/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "zerograd/models/tokenizer/split_pattern.h"
#include "zerograd/models/tokenizer/tokenizer.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {
namespace {

// Backtracking limit of one match. A match is one word, which needs little backtracking.
constexpr uint32_t most_steps = 1000000;

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
    pcre2_set_match_limit(context, most_steps);
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
  // next_stretch() checks the text's UTF-8 once, so a match need not.
  code->code = pcre2_compile(units(translated), translated.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK, &error, &place, nullptr);
  if (!code->code) throw Unsupported(where + ": PCRE2 refuses the pattern: " + reason(error));
  uint32_t matches_nothing = 0;
  pcre2_pattern_info(code->code, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing)
    throw Unsupported(where + ": the pattern may match an empty text; expected one that does not");
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  code_ = std::move(code);
}

Splitter::Pieces::Pieces(const Splitter& splitter, std::string_view text)
    : text_(text), state_(std::make_unique<SplitterState>(splitter.code_, splitter.where_)) {}
Splitter::Pieces::~Pieces() = default;

void Splitter::Pieces::next_stretch() {
  stretch_end_ = at_ + valid_utf8(text_.substr(at_));
  match_ = match_end_ = at_;
  if (stretch_end_ > at_) return match();
  // A run of invalid UTF-8 extends to the next valid character.
  do {
    ++match_;
  } while (match_ < text_.size() && valid_utf8(text_.substr(match_, longest_utf8)) == 0);
  stretch_end_ = match_end_ = match_;
}

void Splitter::Pieces::match() {
  const auto run = state_->code->jit ? pcre2_jit_match : pcre2_match;
  const int result = run(state_->code->code, units(text_), stretch_end_, at_, PCRE2_NO_UTF_CHECK,
                         state_->data, state_->context);
  if (result > 0) {
    const PCRE2_SIZE* places = pcre2_get_ovector_pointer(state_->data);
    match_ = places[0];
    match_end_ = places[1];
  } else if (result == PCRE2_ERROR_NOMATCH) {
    match_ = match_end_ = stretch_end_;
  } else {
    throw ConfigError(state_->where + ": the pattern cannot be matched at byte " +
                      std::to_string(at_) + " of the text: " + reason(result));
  }
}

bool Splitter::Pieces::next(std::string_view& piece) {
  if (at_ == text_.size()) return false;
  if (at_ == stretch_end_)
    next_stretch();
  else if (at_ == match_end_)
    match();
  const size_t begin = at_;
  at_ = begin < match_ ? match_ : match_end_;
  piece = text_.substr(begin, at_ - begin);
  return true;
}

std::string unicode_tables() {
  return configured(PCRE2_CONFIG_UNICODE_VERSION) + " (PCRE2 " + configured(PCRE2_CONFIG_VERSION) +
         ")";
}

}  // namespace zg::models
