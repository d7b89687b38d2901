#include "bench/random_tokens.h"

#include "zerograd/runtime/random.h"

namespace zg::bench {
namespace {

class RandomTokens final : public models::Dataset {
 public:
  RandomTokens(int64_t vocabulary, int64_t block_size)
      : vocabulary_(vocabulary), block_size_(block_size) {}

  int64_t vocabulary() const override { return vocabulary_; }
  int64_t block_size() const override { return block_size_; }
  int64_t epoch_samples(models::Split split) const override {
    return split == models::Split::train ? int64_t{1} << 40 : 0;
  }
  void sample(models::Split, int64_t index, int32_t* ids, int32_t* targets) const override {
    for (int64_t t = 0; t < block_size_; ++t) {
      ids[t] = token(index, t);
      targets[t] = token(index, t + 1);
    }
  }

 private:
  int32_t token(int64_t index, int64_t t) const {
    const auto word =
        Philox::block({static_cast<uint32_t>(t), static_cast<uint32_t>(index), 0, 0}, 1)[0];
    return static_cast<int32_t>(word % static_cast<uint64_t>(vocabulary_));
  }

  int64_t vocabulary_, block_size_;
};

}  // namespace

std::shared_ptr<const models::Dataset> random_tokens(int64_t vocabulary, int64_t block_size) {
  return std::make_shared<RandomTokens>(vocabulary, block_size);
}

}  // namespace zg::bench
