#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/options/options.h"
#include "zerograd/models/data/pair_data.h"
#include "zerograd/models/seq2seq/seq2seq.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"

// The data of encoder-decoder models: texts as tokens, and batches of pairs.
namespace zg::tools {

/// The tokens of an encoder-decoder's texts. A text ends with the model's first eos and, in a BART,
/// begins with its bos. Without a tokenizer a text is a list of token numbers: "15 2 7".
class PairText {
 public:
  /// `where` begins the errors. The tokenizer may be null; otherwise it must outlive the object.
  PairText(const models::Seq2SeqConfig& config, const models::Tokenizer* tokenizer,
           std::string where);
  /// At most `limit` tokens: the end of a longer text is dropped, and its last token is eos.
  std::vector<int32_t> encode(const std::string& text, int64_t limit) const;
  /// The text without special tokens.
  std::string decode(std::span<const int32_t> ids) const;

 private:
  const models::Seq2SeqTokens tokens_;
  const models::Tokenizer* const tokenizer_;
  const std::string where_;
  const bool begins_with_bos_;
};

/// The template that PairText applies, for the tokenizer's files.
models::TextTemplate template_of(const models::Seq2SeqConfig& config);
/// The special tokens of `tokenizer` for a fresh model. Throws ConfigError if no token ends a text.
models::Seq2SeqTokens seq2seq_tokens(models::Seq2SeqFamily family,
                                     const models::Tokenizer& tokenizer, const std::string& path);

/// Pairs and the lengths to which they are padded. As a Dataset it has no samples of one sequence;
/// its block size is the number of tokens of the longest pair that the limits allow.
class PairData final : public models::Dataset {
 public:
  using Lengths = models::PairDataset::Lengths;
  struct Padding {
    Lengths longest;      ///< the limits
    bool always = false;  ///< true: every pair is padded to the limits
  };
  PairData(models::PairDataset pairs, const Padding& padding, const models::Seq2SeqConfig& config);
  /// For a plan without data: an unlimited number of pairs with the lengths of the limits.
  /// `validates`: there is a validation split.
  PairData(const Padding& padding, const models::Seq2SeqConfig& config, bool validates);

  /// The lengths to which samples [first, first + count) are padded.
  Lengths lengths(models::Split split, int64_t first, int64_t count) const;
  models::Seq2SeqBatch padded(models::Split split, int64_t first, int64_t count,
                              const Lengths& lengths, const Device& device) const;
  /// The labels of samples [first, first + count): their targets' tokens.
  int64_t labels(models::Split split, int64_t first, int64_t count) const;
  Lengths longest() const;  ///< of all pairs

  int64_t vocabulary() const override;
  int64_t block_size() const override { return padding_.longest.source + padding_.longest.target; }
  int64_t epoch_samples(models::Split split) const override;
  void sample(models::Split split, int64_t index, int32_t* ids, int32_t* targets) const override;

 private:
  std::vector<models::TokenPair> samples(models::Split split, int64_t first, int64_t count) const;

  const std::optional<models::PairDataset> pairs_;
  const Padding padding_;
  const models::Seq2SeqConfig config_;
  const bool validates_;
};

struct PairSource {
  const DataOptions& data;
  const Seq2SeqOptions& options;  ///< with lengths
  const models::Seq2SeqConfig& config;
  const models::Tokenizer* tokenizer = nullptr;
  uint64_t seed = 3407;
};
/// Reads the pairs of data.source. Throws FileError, and ConfigError for another kind of data, for
/// tokens that the model does not know, and for --n-train or --n-val above the number of pairs.
std::shared_ptr<const PairData> read_pair_data(const PairSource& source);

PairData::Padding padding_of(const Seq2SeqOptions& options);

/// Replaces the lengths that are not given. Throws ConfigError for lengths above the model's
/// positions.
void resolve_lengths(const models::Seq2SeqConfig& config, Seq2SeqOptions& options);

/// Mean loss of a label over the first `batches` batches of `batch` pairs of the validation split,
/// without label smoothing; 0 batches: the whole split. Throws ConfigError without such a split.
double pair_loss(const models::Seq2Seq& model, const std::function<Tape()>& make_tape,
                 const PairData& data, const Device& device, int64_t batch, int64_t batches);

}  // namespace zg::tools
