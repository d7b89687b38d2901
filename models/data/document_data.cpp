#include <algorithm>
#include <cmath>
#include <mutex>

#include "zerograd/models/data/data.h"
#include "zerograd/models/data/indexed_dataset.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

/// The borders of the three splits. As in Megatron-DeepSpeed, weights are normalised, each split is
/// rounded to whole documents (half to even), and the rounding excess is subtracted from every
/// border.
std::array<int64_t, 4> borders(const std::array<double, 3>& weights, int64_t documents) {
  const double sum = weights[0] + weights[1] + weights[2];
  std::array<int64_t, 4> border{};
  for (size_t i = 0; i < weights.size(); ++i)
    border[i + 1] =
        border[i] +
        static_cast<int64_t>(std::nearbyint(weights[i] / sum * static_cast<double>(documents)));
  const int64_t excess = border[3] - documents;
  // In Megatron a border can be outside of the documents; here it is moved to the nearest document.
  for (size_t i = 1; i < border.size(); ++i)
    border[i] = std::clamp<int64_t>(border[i] - excess, 0, documents);
  return border;
}

class DocumentDataset final : public Dataset {
 public:
  DocumentDataset(const std::string& prefix, const DocumentOptions& options)
      : data_(indexed_files(prefix)), options_(options) {
    check_options();
    const std::array<int64_t, 4> border = borders(options.split, data_.sequences());
    first_ = border[0];
    train_documents_ = border[1] - border[0];
    train_ = std::make_unique<DocumentStream>(data_, first_, train_documents_);
    validation_ = std::make_unique<DocumentStream>(data_, border[1], border[2] - border[1]);
    check_lengths(border);
    vocabulary_ = options.vocabulary > 0
                      ? options.vocabulary
                      : vocabulary_of(DocumentStream(data_, 0, data_.sequences()));
  }

  int64_t vocabulary() const override { return vocabulary_; }
  int64_t block_size() const override { return options_.block_size; }
  int64_t epoch_samples(Split split) const override {
    return blocks(split == Split::train ? *train_ : *validation_);
  }

  void sample(Split split, int64_t index, int32_t* ids, int32_t* targets) const override {
    const int64_t count = epoch_samples(split), T = block_size();
    std::vector<int32_t> tokens(static_cast<size_t>(T + 1));
    if (split == Split::train && options_.order == Order::random) {
      const int64_t number = index / count;
      const auto shuffled = epoch(number);
      shuffled->stream.read(shuffled->samples(index % count) * T, tokens);
    } else {
      (split == Split::train ? *train_ : *validation_).read(index % count * T, tokens);
    }
    check_ids(tokens);
    std::copy_n(tokens.begin(), T, ids);
    std::copy_n(tokens.begin() + 1, T, targets);
  }
  int64_t targets(Split, int64_t) const override { return block_size(); }

 private:
  /// One epoch: the order of the training documents, and the order of the samples cut from them.
  struct Epoch {
    int64_t number;
    DocumentStream stream;
    Permutation samples;
  };

  void check_options() const {
    const auto& weights = options_.split;
    const bool usable =
        std::ranges::all_of(weights,
                            [](double weight) { return weight >= 0.0 && std::isfinite(weight); }) &&
        weights[0] > 0.0 && std::isfinite(weights[0] + weights[1] + weights[2]);
    if (options_.block_size < 1 || !usable)
      raise<ConfigError>(
          "{}: expected a block size from 1 and a split of weights from 0, the first "
          "above 0, got {} and {}",
          data_.path(), options_.block_size, split_text());
  }

  void check_lengths(const std::array<int64_t, 4>& border) const {
    // As in Megatron, a split without documents does not exist.
    const bool validates = border[2] > border[1];
    if (blocks(*train_) > 0 && (!validates || blocks(*validation_) > 0)) return;
    raise<ConfigError>(
        "{}: split {} of {} documents is {} tokens in {} to train and {} in {} to validate; a "
        "block size of {} needs {} tokens of each; try a smaller block size or another split",
        data_.path(), split_text(), data_.sequences(), train_->size(), train_documents_,
        validation_->size(), border[2] - border[1], block_size(), block_size() + 1);
  }

  void check_ids(const std::vector<int32_t>& tokens) const {
    const int32_t largest = *std::ranges::max_element(tokens);
    if (largest >= vocabulary_)
      raise<FileError>("{}: expected ids below the vocabulary's {}, got {}", data_.path(),
                       vocabulary_, largest);
  }

  std::string split_text() const {
    std::string text;
    for (double weight : options_.split)
      text += fmt::format("{}{:g}", text.empty() ? "" : ",", weight);
    return text;
  }

  int64_t blocks(const DocumentStream& stream) const {
    return stream.size() > 0 ? (stream.size() - 1) / block_size() : 0;
  }

  /// Returns an epoch, made at its first use. Ranks that are threads may use two at the same time.
  std::shared_ptr<const Epoch> epoch(int64_t number) const {
    const std::lock_guard lock(mutex_);
    for (const auto& known : epochs_)
      if (known && known->number == number) return known;
    const auto index = static_cast<uint64_t>(number);
    epochs_[1] = std::move(epochs_[0]);
    epochs_[0] = std::make_shared<const Epoch>(
        Epoch{number,
              DocumentStream(data_, first_, train_documents_,
                             Permutation(options_.seed, "documents", index, train_documents_)),
              Permutation(options_.seed, "samples", index, blocks(*train_))});
    return epochs_[0];
  }

  IndexedDataset data_;
  DocumentOptions options_;
  int64_t first_ = 0, train_documents_ = 0, vocabulary_ = 0;
  std::unique_ptr<const DocumentStream> train_, validation_;  // in the order of the documents
  mutable std::mutex mutex_;
  mutable std::array<std::shared_ptr<const Epoch>, 2> epochs_;  // the last two that were used
};

}  // namespace

std::unique_ptr<Dataset> indexed_dataset(const std::string& prefix,
                                         const DocumentOptions& options) {
  return std::make_unique<DocumentDataset>(prefix, options);
}

}  // namespace zg::models
