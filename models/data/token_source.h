#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/api.h"

namespace zg::models {

/// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
  bool operator==(const TextSpan&) const = default;
};
/// The tokens of a text, and for each one the bytes of the text that it stands for.
struct EncodedText {
  std::vector<int32_t> ids;
  std::vector<TextSpan> spans;
};

/// Converts text to tokens and back.
class ZG_API TextCodec {
 public:
  virtual ~TextCodec() = default;
  virtual std::vector<int32_t> encode(const std::string& text) const = 0;
  virtual std::string decode(const std::vector<int32_t>& ids) const = 0;
};

/// A long sequence of tokens that is read in ranges, so it may be larger than memory. Ranks that
/// are threads share it: several may call read() at the same time.
class ZG_API TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t size() const = 0;  ///< tokens
  /// Reads tokens [begin, begin + tokens.size()), which must be within size(). Throws FileError if
  /// the file cannot be read.
  virtual void read(int64_t begin, std::span<int32_t> tokens) const = 0;
};

ZG_API std::unique_ptr<const TokenSource> tokens_in_memory(std::vector<int32_t> tokens);

/// The largest token plus 1; reads all tokens.
ZG_API int64_t vocabulary_of(const TokenSource& tokens);

using TokenFileHeader = std::array<int32_t, 256>;
inline constexpr int32_t token_file_magic = 20240520, token_file_version = 1;
inline constexpr int32_t wide_token_file_magic = 20240801, wide_token_file_version = 7;

/// The tokens of an llm.c file: 256 little-endian int32 (20240520, 1, token count, zeros), then
/// uint16; or, as llm.c writes for Llama 3, (20240801, 7, ...), then uint32. Throws FileError for
/// any other header or size.
ZG_API std::unique_ptr<const TokenSource> open_token_file(const std::string& path);

}  // namespace zg::models
