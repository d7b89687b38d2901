#include <algorithm>
#include <numeric>

#include "zerograd/models/data/data.h"
#include "zerograd/models/data/question.h"
#include "zerograd/models/data/random_stream.h"
#include "zerograd/runtime/error.h"

namespace zg::models {
namespace {

int64_t power_of_ten(int64_t exponent) {
  return exponent == 0 ? 1 : 10 * power_of_ten(exponent - 1);
}

class AdderDataset final : public Dataset {
 public:
  AdderDataset(uint64_t seed, int64_t digits) : seed_(seed), digits_(digits) {
    if (digits < 1 || digits > 3)
      throw ConfigError("adder_dataset: expected 1, 2 or 3 digits, got " + std::to_string(digits));
    numbers_ = power_of_ten(digits);
    const int64_t problems = numbers_ * numbers_;
    held_out_ = std::min<int64_t>(problems / 5, 500);
    problems_.resize(static_cast<size_t>(problems));
    std::iota(problems_.begin(), problems_.end(), 0);
    RandomStream random(seed, "adder.split", 0);
    for (int64_t i = problems - 1; i > 0; --i)
      std::swap(problems_[static_cast<size_t>(i)],
                problems_[static_cast<size_t>(random.below(i + 1))]);
  }

  int64_t vocabulary() const override { return 10; }
  int64_t block_size() const override { return 3 * digits_; }
  int64_t question_length() const override { return 2 * digits_; }
  int64_t epoch_samples(Split split) const override {
    return split == Split::validation ? held_out_
                                      : static_cast<int64_t>(problems_.size()) - held_out_;
  }

  // Training draws problems with replacement; validation goes through the held-out ones in turn.
  void sample(Split split, int64_t index, int32_t* ids, int32_t* targets) const override {
    const int64_t count = epoch_samples(split);
    const int64_t place =
        split == Split::validation
            ? index % count
            : held_out_ + RandomStream(seed_, "adder", static_cast<uint64_t>(index)).below(count);
    const int64_t problem = problems_[static_cast<size_t>(place)];
    const int64_t a = problem / numbers_, b = problem % numbers_;
    std::vector<int32_t> tokens;
    for (int64_t i = digits_ - 1; i >= 0; --i) tokens.push_back(digit(a, i));
    for (int64_t i = digits_ - 1; i >= 0; --i) tokens.push_back(digit(b, i));
    for (int64_t i = 0; i <= digits_; ++i) tokens.push_back(digit(a + b, i));
    write_question(tokens, question_length(), ids, targets);
  }

 private:
  static int32_t digit(int64_t number, int64_t place) {
    return static_cast<int32_t>(number / power_of_ten(place) % 10);
  }

  uint64_t seed_;
  int64_t digits_, numbers_ = 0, held_out_ = 0;
  std::vector<int32_t> problems_;  // a * numbers_ + b, shuffled; the held-out ones first
};

}  // namespace

std::unique_ptr<Dataset> adder_dataset(uint64_t seed, int64_t digits) {
  return std::make_unique<AdderDataset>(seed, digits);
}

}  // namespace zg::models
