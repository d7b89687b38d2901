#include "zerograd/models/tokenizer/tokenized_text.h"

#include "zerograd/models/data/windows.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {
namespace {

class TokenizerCodec final : public TextCodec {
 public:
  explicit TokenizerCodec(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::vector<int32_t> encode(const std::string& text) const override {
    return tokenizer_.encode(text);
  }
  /// Readable: a part of a character is U+FFFD, and so is a token that only the model has.
  std::string decode(const std::vector<int32_t>& ids) const override {
    std::string bytes;
    for (const int32_t id : ids)
      bytes += id < tokenizer_.vocabulary() ? tokenizer_.decode(std::span(&id, 1)) : utf8(0xfffd);
    return readable_utf8(bytes);
  }

 private:
  Tokenizer tokenizer_;
};

}  // namespace

std::unique_ptr<Dataset> tokenized_dataset(const std::string& path, const Tokenizer& tokenizer,
                                           const TextOptions& options) {
  const std::string text = read_text(path);
  if (text.empty()) throw ConfigError(path + ": the file is empty; expected text");
  return window_dataset({.path = path,
                         .tokens = tokens_in_memory(tokenizer.encode(text)),
                         .vocabulary = tokenizer.vocabulary(),
                         .codec = std::make_unique<TokenizerCodec>(tokenizer)},
                        options);
}

}  // namespace zg::models
