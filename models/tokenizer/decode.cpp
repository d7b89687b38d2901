#include "zerograd/models/tokenizer/text_pipeline.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {

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
