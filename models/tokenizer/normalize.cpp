#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "zerograd/models/tokenizer/text_pipeline.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {

size_t character_size(std::string_view text, size_t at, int32_t* code) {
  int32_t unused = 0;
  return static_cast<size_t>(std::max<utf8proc_ssize_t>(
      1, utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at),
                          static_cast<utf8proc_ssize_t>(text.size() - at), code ? code : &unused)));
}

namespace {

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

constexpr auto nfc_options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

/// The canonical decomposition. For a long text it is computed here, because utf8proc sorts a run
/// of n marks in up to n * n steps.
std::string with_sorted_marks(std::string_view text) {
  std::vector<utf8proc_int32_t> codes;
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t parts[4];  // no character of Unicode has more
    int boundary = 0;
    const auto code = static_cast<utf8proc_int32_t>(next_code_point(text, at, "normalizer"));
    const auto count = utf8proc_decompose_char(code, parts, 4, nfc_options, &boundary);
    codes.insert(codes.end(), parts, parts + count);
  }
  const auto mark_class = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  for (auto begin = codes.begin(); begin != codes.end();) {
    const auto end = std::find_if(begin, codes.end(), [&](auto c) { return mark_class(c) == 0; });
    std::stable_sort(begin, end, [&](auto a, auto b) { return mark_class(a) < mark_class(b); });
    begin = end == codes.end() ? end : end + 1;
  }
  std::string out;
  for (const utf8proc_int32_t code : codes) out += utf8(static_cast<char32_t>(code));
  return out;
}

/// Appends the canonical composition of UTF-8 text.
void append_nfc(std::string_view text, std::string& out) {
  constexpr size_t long_bytes = 1024;
  std::string sorted;
  if (text.size() > long_bytes) text = sorted = with_sorted_marks(text);
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &composed, nfc_options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(composed, std::free);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (size < 0)
    raise<ConfigError>("normalizer: NFC of {} bytes: {}", text.size(), utf8proc_errmsg(size));
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
  const auto* after = std::ranges::upper_bound(inert, code, {}, &CodePoints::first);
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

// A composed character has the origin of the first of its parts. Compositions do not cross the
// borders of grapheme clusters, at which the text is cut.
std::vector<TextSpan> composed_origins(const TracedText& from) {
  const std::string_view text = from.text;
  std::vector<TextSpan> origins;
  for (size_t begin = 0; begin < text.size();) {
    std::vector<TextSpan> parts;
    size_t end = begin;
    int32_t last = 0, next = 0;
    do {
      parts.push_back(from.origins[end]);
      end += character_size(text, end, &last);
    } while (end < text.size() && character_size(text, end, &next) > 0 &&
             !utf8proc_grapheme_break(last, next));
    const std::string composed = nfc(text.substr(begin, end - begin));
    std::vector<size_t> sizes;
    for (size_t at = 0; at < composed.size(); at += sizes.back())
      sizes.push_back(character_size(composed, at));
    for (size_t i = 0; i < sizes.size(); ++i) {
      const size_t left = sizes.size() - i;
      origins.insert(origins.end(), sizes[i],
                     parts[i == 0 || left > parts.size() ? 0 : parts.size() - left]);
    }
    begin = end;
  }
  origins.resize(nfc(text).size(), origins.back());
  return origins;
}

}  // namespace

TracedText TracedView::copy() const {
  return {std::string(text),
          origins ? std::vector(origins, origins + text.size()) : std::vector<TextSpan>()};
}

// As in Hugging Face's tokenizers, the new characters have the origin of the last one replaced.
void replace(TracedText& own, const ReplaceStep& step) {
  TracedText out;
  const std::string_view text = own.text;
  const bool traced = !own.origins.empty();
  for (size_t at = 0;;) {
    // memmem() takes linear time, which string_view::find does not.
    const void* place =
        ::memmem(text.data() + at, text.size() - at, step.text.data(), step.text.size());
    const size_t found =
        place ? static_cast<size_t>(static_cast<const char*>(place) - text.data()) : text.npos;
    out.text += text.substr(at, found - at);
    if (traced)
      out.origins.insert(
          out.origins.end(), own.origins.begin() + static_cast<ptrdiff_t>(at),
          own.origins.begin() + static_cast<ptrdiff_t>(std::min(found, text.size())));
    if (found == std::string_view::npos) break;
    out.text += step.by;
    at = found + step.text.size();
    if (traced) out.origins.insert(out.origins.end(), step.by.size(), own.origins[at - 1]);
  }
  own = std::move(out);
}

std::string replaced(std::string_view text, const ReplaceStep& step) {
  TracedText own{std::string(text)};
  replace(own, step);
  return std::move(own.text);
}

void prepend(TracedText& own, const std::string& characters) {
  if (own.text.empty()) return;
  own.text.insert(0, characters);
  if (!own.origins.empty())
    own.origins.insert(own.origins.begin(), characters.size(), own.origins.front());
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
  TracedText& own;
  void operator()(const NFCStep&) {
    std::string composed = nfc(own.text);
    if (!own.origins.empty() && composed != own.text) own.origins = composed_origins(own);
    own.text = std::move(composed);
  }
  void operator()(const PrependStep& step) { prepend(own, step.text); }
  void operator()(const ReplaceStep& step) { replace(own, step); }
};

}  // namespace

void normalize(TracedText& text, std::span<const NormalizerStep> steps) {
  for (const NormalizerStep& step : steps) std::visit(Normalize{text}, step);
}

std::string normalized(std::string_view text, std::span<const NormalizerStep> steps) {
  TracedText own{std::string(text)};
  normalize(own, steps);
  return std::move(own.text);
}

namespace {

constexpr size_t max_growth = 256;

}  // namespace

void check_growth(std::span<const ReplaceStep> steps, const std::string& where) {
  size_t growth = 1;
  for (const ReplaceStep& step : steps) {
    if (step.text.empty())
      throw FileError(where + ": an empty text to replace; expected characters");
    growth *= std::max<size_t>(1, (step.by.size() + step.text.size() - 1) / step.text.size());
    if (growth > max_growth)
      raise<Unsupported>(
          "{}: steps that may make a text {} times longer; expected at most {} (max_growth)", where,
          growth, max_growth);
  }
}

std::string normalizer_tables() {
  return fmt::format("{} (utf8proc {})", utf8proc_unicode_version(), utf8proc_version());
}

std::string unicode_tables() { return pattern_tables() + ", " + normalizer_tables(); }

}  // namespace zg::models
