#include "zerograd/models/data/token_source.h"

#include <algorithm>
#include <bit>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

class TokensInMemory final : public TokenSource {
 public:
  explicit TokensInMemory(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}

  int64_t size() const override { return std::ssize(tokens_); }
  void read(int64_t begin, std::span<int32_t> tokens) const override {
    std::copy_n(tokens_.begin() + begin, tokens.size(), tokens.begin());
  }

 private:
  std::vector<int32_t> tokens_;
};

}  // namespace

std::unique_ptr<const TokenSource> tokens_in_memory(std::vector<int32_t> tokens) {
  return std::make_unique<TokensInMemory>(std::move(tokens));
}

int64_t vocabulary_of(const TokenSource& tokens) {
  constexpr int64_t chunk = 1 << 18;  // tokens in a MiB
  std::vector<int32_t> piece(static_cast<size_t>(std::min(chunk, tokens.size())));
  int32_t largest = -1;
  for (int64_t begin = 0; begin < tokens.size(); begin += chunk) {
    piece.resize(static_cast<size_t>(std::min(chunk, tokens.size() - begin)));
    tokens.read(begin, piece);
    largest = std::max(largest, *std::ranges::max_element(piece));
  }
  return int64_t{largest} + 1;
}

namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and are read without swapping bytes");

void expect(const std::string& path, const char* what, int64_t expected, int64_t got) {
  if (got != expected)
    raise<FileError>("{}: not a token file of llm.c: expected {} {}, got {}", path, what, expected,
                     got);
}

/// Checks a file's header and size. Returns the number of bytes of a token.
int64_t check(const std::string& path, const TokenFileHeader& header, int64_t file_bytes) {
  const bool wide = header[0] == wide_token_file_magic;
  if (!wide) expect(path, "magic number", token_file_magic, header[0]);
  expect(path, "version", wide ? wide_token_file_version : token_file_version, header[1]);
  for (size_t i = 3; i < header.size(); ++i) expect(path, "header padding", 0, header[i]);
  const int64_t tokens = header[2], token_bytes = wide ? 4 : 2;
  expect(path, "bytes", static_cast<int64_t>(sizeof header) + token_bytes * tokens, file_bytes);
  return token_bytes;
}

class TokenFile final : public TokenSource {
 public:
  explicit TokenFile(const std::string& path) : file_(File::open(path)) {
    const int64_t file_bytes = file_.size();
    TokenFileHeader header;
    if (file_bytes < static_cast<int64_t>(sizeof header))
      raise<FileError>("{}: not a token file of llm.c: expected at least 1024 bytes, got {}", path,
                       file_bytes);
    file_.read_at(0, std::as_writable_bytes(std::span(header)));
    token_bytes_ = check(path, header, file_bytes);
    size_ = header[2];
  }

  int64_t size() const override { return size_; }
  void read(int64_t begin, std::span<int32_t> tokens) const override {
    const int64_t at = static_cast<int64_t>(sizeof(TokenFileHeader)) + token_bytes_ * begin;
    if (token_bytes_ == 4) {
      file_.read_at(at, std::as_writable_bytes(tokens));
      for (const int32_t token : tokens)
        if (token < 0)
          raise<FileError>("{}: expected tokens below 2^31, got {}", file_.path(),
                           static_cast<uint32_t>(token));
      return;
    }
    std::vector<uint16_t> narrow(tokens.size());
    file_.read_at(at, std::as_writable_bytes(std::span(narrow)));
    std::ranges::copy(narrow, tokens.begin());
  }

 private:
  File file_;
  int64_t size_ = 0, token_bytes_ = 2;
};

}  // namespace

std::unique_ptr<const TokenSource> open_token_file(const std::string& path) {
  return std::make_unique<TokenFile>(path);
}

}  // namespace zg::models
