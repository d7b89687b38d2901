#include "zerograd/models/data/token_file.h"
#include "zerograd/models/data/windows.h"

namespace zg::models {

std::unique_ptr<Dataset> token_dataset(const std::string& path, const TextOptions& options) {
  TokenSequence sequence{.path = path, .tokens = open_token_file(path)};
  sequence.vocabulary = vocabulary_of(*sequence.tokens);
  return window_dataset(std::move(sequence), options);
}

}  // namespace zg::models
