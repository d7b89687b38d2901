#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>

#include "zerograd/models/data/data.h"
#include "zerograd/models/data/random_stream.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

/// Writes a task's tokens, question then answer, as ids and targets of one sample: each position
/// predicts the next token. Targets that are part of the question are ignored.
void write_question(std::span<const int32_t> tokens, int64_t question_length, int32_t* ids,
                    int32_t* targets) {
  std::copy(tokens.begin(), tokens.end() - 1, ids);
  std::copy(tokens.begin() + 1, tokens.end(), targets);
  std::fill_n(targets, question_length - 1, -1);
}

// True for a sequence of the validation split. The hash is Philox, because every digit changes
// every bit of its result; the low bits of FNV depend on low bits only.
bool held_out(std::span<const int32_t> sequence, int64_t digits) {
  uint64_t number = 0;
  for (int32_t digit : sequence)
    number = number * static_cast<uint64_t>(digits) + static_cast<uint64_t>(digit);
  const Philox::Block counter{static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), 0,
                              0};
  return Philox::block(counter, hash_name("sort.split"))[0] % 4 == 0;
}

int64_t different(std::span<const int32_t> sequence) {
  std::vector<int32_t> sorted(sequence.begin(), sequence.end());
  std::ranges::sort(sorted);
  return std::unique(sorted.begin(), sorted.end()) - sorted.begin();
}

class SortDataset final : public Dataset {
 public:
  SortDataset(uint64_t seed, int64_t length, int64_t digits)
      : seed_(seed), length_(length), digits_(digits) {
    if (length < 1 || length > 1024 || digits < 2 || digits > 65536 || !has_both_splits())
      raise<ConfigError>(
          "sort_dataset: expected a length of 1 to 1024 and 2 to 65536 digits with sequences in "
          "both splits, got length {} and {} digits; try length 6 and 3 digits",
          length, digits);
  }

  int64_t vocabulary() const override { return digits_; }
  int64_t block_size() const override { return 2 * length_ - 1; }
  int64_t epoch_samples(Split) const override { return 10000; }
  int64_t question_length() const override { return length_; }

  void sample(Split split, int64_t index, int32_t* ids, int32_t* targets) const override {
    RandomStream random(seed_, "sort.sample", static_cast<uint64_t>(index));
    std::vector<int32_t> tokens(static_cast<size_t>(2 * length_));
    const std::span<int32_t> question = std::span(tokens).first(static_cast<size_t>(length_));
    bool accepted = false;
    while (!accepted) {
      for (int32_t& digit : question) digit = static_cast<int32_t>(random.below(digits_));
      const bool wants_repeats = random.uniform() < 0.5;
      accepted = (!wants_repeats || different(question) <= length_ / 2) &&
                 held_out(question, digits_) == (split == Split::validation);
    }
    const auto answer = std::copy(question.begin(), question.end(), tokens.begin() + length_);
    std::sort(tokens.begin() + length_, answer);
    write_question(tokens, length_, ids, targets);
  }

 private:
  // If few sequences exist, all may belong to one split, and the search for a sample of the other
  // split would not end.
  bool has_both_splits() const {
    bool found[2] = {false, false};
    std::vector<int32_t> sequence(static_cast<size_t>(length_), 0);
    for (int tried = 0; tried < 4096 && !(found[0] && found[1]); ++tried) {
      found[held_out(sequence, digits_)] = true;
      size_t place = 0;
      while (place < sequence.size() && ++sequence[place] == digits_) sequence[place++] = 0;
      if (place == sequence.size()) break;
    }
    return found[0] && found[1];
  }

  uint64_t seed_;
  int64_t length_, digits_;
};

}  // namespace

std::unique_ptr<Dataset> sort_dataset(uint64_t seed, int64_t length, int64_t digits) {
  return std::make_unique<SortDataset>(seed, length, digits);
}

namespace {

int64_t power_of_ten(int64_t exponent) {
  return exponent == 0 ? 1 : 10 * power_of_ten(exponent - 1);
}

class AdderDataset final : public Dataset {
 public:
  AdderDataset(uint64_t seed, int64_t digits) : seed_(seed), digits_(digits) {
    if (digits < 1 || digits > 3)
      raise<ConfigError>("adder_dataset: expected 1, 2 or 3 digits, got {}", digits);
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
    return split == Split::validation ? held_out_ : std::ssize(problems_) - held_out_;
  }

  // Training draws problems with replacement; validation uses the held-out problems in turn.
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
