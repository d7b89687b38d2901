#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zerograd/models/tokenizer/tokenizer.h"

namespace zg::models {

/// Converts a prompt to tokens, and the tokens that generate() returns one by one to text.
class ZG_API TextStream {
 public:
  virtual ~TextStream() = default;
  /// A tokenizer adds the tokens that it puts around a text, such as Llama's "<s>", as transformers
  /// does. Throws ConfigError for text that has no tokens.
  virtual std::vector<int32_t> encode(const std::string& prompt) const = 0;
  /// The text that this token completes. Tokens that a tokenizer puts before a text have none. A
  /// token may end within a character, which then comes with a later token.
  virtual std::string decode(int32_t token) = 0;
  /// The bytes of an unfinished character after the last token, as readable text.
  virtual std::string rest() { return ""; }
};

ZG_API std::unique_ptr<TextStream> text_stream(Tokenizer tokenizer);

/// For a model whose tokens are characters: `characters` has one UTF-8 code point for each id, in
/// order. Empty: tokens are written as numbers, "15 2 7". Errors begin with `where`.
ZG_API std::unique_ptr<TextStream> character_stream(const std::string& characters,
                                                    const std::string& where);

}  // namespace zg::models
