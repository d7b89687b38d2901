#include <algorithm>

#include "models/token_file.h"
#include "models/windows.h"

namespace zg::models {

std::unique_ptr<Dataset> token_dataset(const std::string& path, const TextOptions& options) {
  TokenSequence sequence{.path = path, .tokens = read_token_file(path)};
  for (uint16_t token : sequence.tokens)
    sequence.vocabulary = std::max<int64_t>(sequence.vocabulary, int64_t{token} + 1);
  return window_dataset(std::move(sequence), options);
}

}  // namespace zg::models
