// A program of the engine and the tokenizers, which includes all of their headers.
#include <cstdio>

#include "zerograd/text.h"
#include "zerograd/zerograd.h"

int main() {
  using namespace zg;
  const char* text = "to be or not to be";
  const models::Tokenizer tokenizer =
      models::train_tokenizer(text, {.vocabulary = 260, .added = {}, .split = {}});
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const Tensor values = Tensor::from(ids, {static_cast<int64_t>(ids.size())}, Device::cpu());
  std::printf("zerograd %s: %zu ids of %zu letters\n", version(), ids.size(),
              std::string(text).size());
  return tokenizer.decode(values.to_host<int32_t>()) == text && ids.size() < 18 ? 0 : 1;
}
