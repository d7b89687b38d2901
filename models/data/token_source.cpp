#include "zerograd/models/data/token_source.h"

#include <algorithm>

namespace zg::models {
namespace {

class TokensInMemory final : public TokenSource {
 public:
  explicit TokensInMemory(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}

  int64_t size() const override { return static_cast<int64_t>(tokens_.size()); }
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
  constexpr int64_t most = 1 << 18;  // a piece of a MiB
  std::vector<int32_t> piece(static_cast<size_t>(std::min(most, tokens.size())));
  int32_t largest = -1;
  for (int64_t begin = 0; begin < tokens.size(); begin += most) {
    piece.resize(static_cast<size_t>(std::min(most, tokens.size() - begin)));
    tokens.read(begin, piece);
    largest = std::max(largest, *std::max_element(piece.begin(), piece.end()));
  }
  return int64_t{largest} + 1;
}

}  // namespace zg::models
