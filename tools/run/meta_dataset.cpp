#include "tools/run/meta_dataset.h"

#include <algorithm>

#include "tools/options/model_flags.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {
namespace {

class MetaDataset final : public models::Dataset {
 public:
  MetaDataset(int64_t vocabulary, int64_t block_size, Validates validates)
      : vocabulary_(vocabulary), block_size_(block_size), validates_(validates) {}

  int64_t vocabulary() const override { return vocabulary_; }
  int64_t block_size() const override { return block_size_; }
  int64_t epoch_samples(models::Split split) const override {
    const bool has = split == models::Split::train || validates_ == Validates::yes;
    return has ? int64_t{1} << 40 : 0;
  }
  void sample(models::Split, int64_t, int32_t* ids, int32_t* targets) const override {
    std::fill(ids, ids + block_size_, 0);
    std::fill(targets, targets + block_size_, 0);
  }

 private:
  const int64_t vocabulary_, block_size_;
  const Validates validates_;
};

}  // namespace

std::shared_ptr<const models::Dataset> meta_dataset(const ModelOptions& model,
                                                    Validates validates) {
  int64_t vocabulary = model.vocabulary, block_size = model.block_size;
  check_sizes(model);
  if (model.layers == 0) {
    const models::GPTConfig named = models::GPTConfig::published(model.model_type);
    if (vocabulary == 0) vocabulary = named.vocabulary;
    if (block_size == 0) block_size = named.block_size;
  }
  if (vocabulary == 0 || block_size == 0)
    throw ConfigError(
        "--data: expected sort, adder, PATH.txt or PATH.bin, got nothing; try --data sort, or "
        "--vocab-size and --block-size for a plan without data");
  return std::make_shared<MetaDataset>(vocabulary, block_size, validates);
}

}  // namespace zg::tools
