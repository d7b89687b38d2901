#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "zerograd/models/data/data.h"
#include "zerograd/runtime/api.h"

// Pairs of a source and a target, for encoder-decoder models (models/seq2seq/seq2seq.h).
namespace zg::models {

struct TokenPair {
  std::vector<int32_t> source, target;
  bool operator==(const TokenPair&) const = default;
};

struct PairFileOptions {
  std::string source_key = "source", target_key = "target";  ///< members of each line's object
  /// Tokens; the end of a longer source or target is dropped, as transformers' truncation=True
  /// does. An `encode` that appends a token to the text must count it.
  int64_t max_source = 128, max_target = 128;
  std::string source_prefix = {};  ///< before the text of each source
};
/// Reads a file with a JSON object on each line, such as {"source": "Hi", "target": "Hello"}, in
/// UTF-8. Empty lines are left out. `encode` gives the tokens of a text, with special tokens, and
/// at most `limit` of them: it decides what is dropped. Throws FileError naming file and line if a
/// line is not an object, lacks a key or has another type there, and ConfigError for limits below
/// 1, a file without pairs, or a text without tokens.
ZG_API std::vector<TokenPair> read_pairs(
    const std::string& path,
    const std::function<std::vector<int32_t>(const std::string& text, int64_t limit)>& encode,
    const PairFileOptions& options = {});

struct PairOptions {
  /// The part at the end of the pairs that is the validation split; 0: none.
  double validation_fraction = 0.1;
  Order order = Order::random;  ///< order of training samples; validation is sequential
  uint64_t seed = 3407;
};

/// Pairs whose samples are numbered from 0. A sample depends on its number only, so the data of a
/// step depends neither on the number of ranks nor on restarts. In random order each epoch is
/// shuffled by (seed, epoch).
class ZG_API PairDataset {
 public:
  /// Throws ConfigError for a fraction outside [0, 1], or if one below 1 leaves no pair to train
  /// on.
  explicit PairDataset(std::vector<TokenPair> pairs, const PairOptions& options = {});

  int64_t epoch_samples(Split split) const;
  /// Every index from 0 on is valid: epochs follow one another. ConfigError if the split is empty.
  const TokenPair& sample(Split split, int64_t index) const;
  std::vector<TokenPair> samples(Split split, int64_t first, int64_t count) const;

  struct Lengths {
    int64_t source = 0, target = 0;
    bool operator==(const Lengths&) const = default;
  };
  /// The longest source and target of samples [first, first + count). Pad every micro-batch of a
  /// step to the lengths of the whole step. Then all ranks have the same shape, and the shape does
  /// not depend on how ranks divide the step.
  Lengths longest(Split split, int64_t first, int64_t count) const;
  Lengths longest() const;     ///< of all pairs, for a plan without steps
  int64_t vocabulary() const;  ///< the largest token plus 1

 private:
  std::vector<TokenPair> pairs_;  // the validation split is the end
  int64_t training_ = 0;          // pairs of the training split
  PairOptions options_;
};

}  // namespace zg::models
