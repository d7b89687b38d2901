#include "zerograd/models/data/windows.h"

#include <algorithm>

#include "zerograd/models/data/random_stream.h"
#include "zerograd/runtime/error.h"

namespace zg::models {
namespace {

class WindowDataset final : public Dataset {
 public:
  WindowDataset(TokenSequence sequence, const TextOptions& options)
      : sequence_(std::move(sequence)), options_(options) {
    const double fraction = options.validation_fraction;
    if (options.block_size < 1 || !(fraction >= 0.0 && fraction < 1.0))
      throw ConfigError(sequence_.path +
                        ": expected a block size from 1 and a validation fraction in [0, 1), got " +
                        std::to_string(options.block_size) + " and " + std::to_string(fraction));
    const int64_t tokens = sequence_.tokens->size();
    const int64_t held_out = static_cast<int64_t>(static_cast<double>(tokens) * fraction);
    train_ = {0, tokens - held_out};
    validation_ = {tokens - held_out, held_out};
    if (blocks(train_) < 1 || (fraction > 0.0 && blocks(validation_) < 1))
      throw ConfigError(sequence_.path + ": " + std::to_string(tokens) + " tokens are " +
                        std::to_string(train_.tokens) + " to train and " +
                        std::to_string(held_out) + " to validate; a block size of " +
                        std::to_string(options.block_size) + " needs " +
                        std::to_string(options.block_size + 1) +
                        " of each; try a smaller block size or another validation fraction");
  }

  int64_t vocabulary() const override { return sequence_.vocabulary; }
  int64_t block_size() const override { return options_.block_size; }
  int64_t epoch_samples(Split split) const override { return blocks(part(split)); }

  void sample(Split split, int64_t index, int32_t* ids, int32_t* targets) const override {
    std::vector<int32_t> window(static_cast<size_t>(block_size() + 1));
    sequence_.tokens->read(part(split).begin + start(split, index), window);
    std::copy_n(window.begin(), block_size(), ids);
    std::copy_n(window.begin() + 1, block_size(), targets);
  }

  bool is_text() const override { return sequence_.codec != nullptr; }
  std::vector<int32_t> encode(const std::string& text) const override {
    return is_text() ? sequence_.codec->encode(text) : Dataset::encode(text);
  }
  std::string decode(const std::vector<int32_t>& ids) const override {
    return is_text() ? sequence_.codec->decode(ids) : Dataset::decode(ids);
  }

 private:
  struct Part {
    int64_t begin = 0, tokens = 0;
  };

  const Part& part(Split split) const { return split == Split::train ? train_ : validation_; }
  // The last token of a part is a target only.
  int64_t blocks(const Part& part) const {
    return part.tokens > 0 ? (part.tokens - 1) / options_.block_size : 0;
  }
  int64_t start(Split split, int64_t index) const {
    if (split == Split::validation || options_.order == Order::sequential)
      return index % blocks(part(split)) * options_.block_size;
    return RandomStream(options_.seed, "text", static_cast<uint64_t>(index))
        .below(train_.tokens - options_.block_size);
  }

  TokenSequence sequence_;
  TextOptions options_;
  Part train_, validation_;
};

}  // namespace

std::unique_ptr<Dataset> window_dataset(TokenSequence sequence, const TextOptions& options) {
  return std::make_unique<WindowDataset>(std::move(sequence), options);
}

}  // namespace zg::models
