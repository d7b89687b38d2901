#include "tools/tokenizers.h"

#include "models/tokenizer_files.h"
#include "models/utf8.h"
#include "runtime/error.h"
#include "tools/values.h"
#include "zero/checksum.h"

namespace zg::tools {
namespace {

models::Tokenizer load(const std::string& path, const Settings* saved) {
  try {
    return models::load_tokenizer(path);
  } catch (const FileError& error) {
    if (!saved || path != saved->data.tokenizer) throw;
    throw FileError(std::string(error.what()) +
                    "; the checkpoint was trained with this tokenizer; expected it there, or "
                    "--tokenizer PATH with its new place");
  }
}

}  // namespace

std::string checksum_of(const models::Tokenizer& tokenizer) {
  const std::string json = models::tokenizer_json(tokenizer);
  return zero::checksum(std::as_bytes(std::span(json)));
}

models::Tokenizer tokenizer_named(const std::string& name, std::string_view text) {
  constexpr std::string_view train = "train:";
  if (!name.starts_with(train)) return models::load_tokenizer(name);
  return models::train_tokenizer(
      text, {.vocabulary = parse_integer("--tokenizer", name.substr(train.size()), 257, 1 << 24)});
}

int64_t settle_tokenizer(DataOptions& data, const Settings* saved) {
  if (data.tokenizer.empty()) return 0;
  if (saved && !saved->characters.empty())
    throw ConfigError("--tokenizer: the checkpoint's tokens are the characters of " +
                      saved->data.source + "; leave the flag out");
  const models::Tokenizer tokenizer = load(data.tokenizer, saved);
  const std::string checksum = checksum_of(tokenizer);
  if (saved && !saved->data.tokenizer_checksum.empty() &&
      checksum != saved->data.tokenizer_checksum)
    throw ConfigError("--tokenizer: " + data.tokenizer +
                      " is not the tokenizer that the checkpoint was trained with: expected " +
                      saved->data.tokenizer + " with checksum " + saved->data.tokenizer_checksum +
                      ", got " + checksum);
  data.tokenizer_checksum = checksum;
  return tokenizer.vocabulary();
}

void check_tokenizer(const DataOptions& data, int64_t vocabulary, const models::Dataset& dataset) {
  if (data.tokenizer.empty()) return;
  if (dataset.question_length() > 0)
    throw ConfigError("--tokenizer: expected data PATH.txt, PATH.bin or PREFIX, got " +
                      data.source + ", whose tokens are digits; leave the flag out");
  if (dataset.vocabulary() > vocabulary)
    throw ConfigError("--tokenizer: " + data.tokenizer + " has " + std::to_string(vocabulary) +
                      " tokens; " + data.source + " was made with another, of at least " +
                      std::to_string(dataset.vocabulary()));
}

std::string TokenizedText::decode(int32_t token) {
  // A model may have more tokens than its tokenizer.
  pending_ += token < tokenizer_.vocabulary() ? tokenizer_.decode(std::span(&token, 1))
                                              : models::utf8(0xfffd);
  const size_t shown = pending_.size() - models::unfinished_utf8(pending_);
  const std::string text = models::readable_utf8(std::string_view(pending_).substr(0, shown));
  pending_.erase(0, shown);
  return text;
}

std::string TokenizedText::rest() {
  const std::string text = models::readable_utf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace zg::tools
