#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>

#include "zerograd/models/tokenizer/text_pipeline.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {
namespace {

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

/// Appends the canonical composition of UTF-8 text.
void append_nfc(std::string_view text, std::string& out) {
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(composed, std::free);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (size < 0)
    throw ConfigError(
        fmt::format("normalizer: NFC of {} bytes: {}", text.size(), utf8proc_errmsg(size)));
  out.append(reinterpret_cast<const char*>(composed), static_cast<size_t>(size));
}

struct CodePoints {
  char32_t first, last;
};
// Characters that neither compose nor reorder with others. Hugging Face's tokenizers use Unicode 9,
// which has no combining class for these marks of later versions. utf8proc 2.8 removes U+11A7
// behind a Hangul syllable, which no version of Unicode composes.
constexpr std::array<CodePoints, 40> inert = {
    {{0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
     {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x11a7, 0x11a7},
     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},
     {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50},
     {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e},
     {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938},
     {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
     {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
     {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f},
     {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}}};

bool is_inert(char32_t code) {
  if (code < inert.front().first) return false;
  const auto* after = std::upper_bound(inert.begin(), inert.end(), code,
                                       [](char32_t c, const CodePoints& r) { return c < r.first; });
  return after != inert.begin() && code <= (after - 1)->last;
}

// Appends the canonical composition of valid UTF-8, as by Unicode 9.
void append_composed(std::string_view text, std::string& out) {
  size_t done = 0;
  const auto compose_until = [&](size_t end) {
    if (done < end) append_nfc(text.substr(done, end - done), out);
    done = end;
  };
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!is_inert(next_code_point(text, at, "normalizer"))) continue;
    compose_until(begin);
    out += text.substr(begin, at - begin);
    done = at;
  }
  compose_until(text.size());
}

// An ASCII character composes only with characters after it, so the text is cut before each.
std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && is_ascii(text[end])) ++end;
    const size_t begin = end > at && end < text.size() ? end - 1 : end;
    out += text.substr(at, begin - at);
    while (end < text.size() && !is_ascii(text[end])) ++end;
    for (at = begin; at < end;) {
      const size_t valid = valid_utf8(text.substr(at, end - at));
      if (valid > 0)
        append_composed(text.substr(at, valid), out);
      else
        out += text[at];
      at += std::max<size_t>(valid, 1);
    }
  }
  return out;
}

}  // namespace

std::string replaced(std::string_view text, const ReplaceStep& step) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t found = text.find(step.text, at);
    out += text.substr(at, found - at);
    if (found == std::string_view::npos) return out;
    out += step.by;
    at = found + step.text.size();
  }
}

std::string capitalized(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const bool is_first = at == 0;
    const auto code = static_cast<utf8proc_int32_t>(next_code_point(text, at, "capitalized"));
    out += utf8(static_cast<char32_t>(is_first ? utf8proc_totitle(code) : utf8proc_tolower(code)));
  }
  return out;
}

namespace {

struct Normalize {
  std::string text;
  void operator()(const NFCStep&) { text = nfc(text); }
  void operator()(const PrependStep& step) {
    if (!text.empty()) text.insert(0, step.text);
  }
  void operator()(const ReplaceStep& step) { text = replaced(text, step); }
};

}  // namespace

std::string normalized(std::string_view text, std::span<const NormalizerStep> steps) {
  Normalize normalize{std::string(text)};
  for (const NormalizerStep& step : steps) std::visit(normalize, step);
  return std::move(normalize.text);
}

void check_growth(std::span<const ReplaceStep> steps, const std::string& where) {
  constexpr size_t most = 4096;
  size_t growth = 1;
  for (const ReplaceStep& step : steps) {
    if (step.text.empty())
      throw FileError(where + ": an empty text to replace; expected characters");
    growth *= std::max<size_t>(1, (step.by.size() + step.text.size() - 1) / step.text.size());
    if (growth > most)
      throw Unsupported(
          fmt::format("{}: steps that may make a text {} times longer; expected at most {}", where,
                      growth, most));
  }
}

std::string normalizer_tables() {
  return fmt::format("{} (utf8proc {})", utf8proc_unicode_version(), utf8proc_version());
}

std::string unicode_tables() { return pattern_tables() + ", " + normalizer_tables(); }

}  // namespace zg::models
