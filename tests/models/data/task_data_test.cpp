#include <algorithm>
#include <cmath>
#include <set>

#include "zerograd/models/data/data.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::models;

namespace {

struct Sample {
  std::vector<int32_t> ids, targets;
};

Sample sample(const Dataset& data, Split split, int64_t index) {
  Sample s{std::vector<int32_t>(static_cast<size_t>(data.block_size())),
           std::vector<int32_t>(static_cast<size_t>(data.block_size()))};
  data.sample(split, index, s.ids.data(), s.targets.data());
  return s;
}

std::vector<int32_t> question(const Dataset& data, Split split, int64_t index) {
  Sample s = sample(data, split, index);
  s.ids.resize(static_cast<size_t>(data.question_length()));
  return s.ids;
}

}  // namespace

TEST_CASE(
    "a sort sample is its digits and then the sorted digits, with targets one position ahead") {
  const auto data = sort_dataset(3407);
  CHECK(data->vocabulary() == 3);
  CHECK(data->block_size() == 11);
  CHECK(data->question_length() == 6);
  CHECK(data->epoch_samples(Split::train) == 10000);
  for (Split split : {Split::train, Split::validation})
    for (int64_t index = 0; index < 100; ++index) {
      const auto [ids, targets] = sample(*data, split, index);
      std::vector<int32_t> sorted(ids.begin(), ids.begin() + 6);
      CHECK(std::ranges::all_of(sorted, [](int32_t d) { return d >= 0 && d < 3; }));
      std::ranges::sort(sorted);
      CHECK(std::equal(ids.begin() + 6, ids.end(), sorted.begin()));
      CHECK(std::equal(targets.begin() + 5, targets.end(), sorted.begin(), sorted.end()));
      CHECK(std::count(targets.begin(), targets.begin() + 5, -1) == 5);
    }
}

TEST_CASE("sort's splits share no sequence, and validation has about a quarter of all sequences") {
  const auto data = sort_dataset(1), other_seed = sort_dataset(2);
  std::set<std::vector<int32_t>> train, validation;
  for (int64_t index = 0; index < 8000; ++index) {
    train.insert(question(*data, Split::train, index));
    validation.insert(question(*data, Split::validation, index));
  }
  CHECK(train.size() + validation.size() == 729);
  // A fair hash: 729 / 4 within four standard deviations, 4 sqrt(729 * 3 / 16) = 47.
  CHECK(std::fabs(static_cast<double>(validation.size()) - 729.0 / 4) < 47.0);
  int shared = 0, moved = 0;
  for (const auto& sequence : validation) shared += train.contains(sequence);
  CHECK(shared == 0);
  for (int64_t index = 0; index < 200; ++index)
    moved += train.contains(question(*other_seed, Split::validation, index));
  CHECK(moved == 0);
}

TEST_CASE("sort_dataset rejects half of the draws with more than three different digits") {
  const auto data = sort_dataset(5, 6, 10);
  int many = 0;
  constexpr int draws = 4000;
  for (int64_t index = 0; index < draws; ++index) {
    const std::vector<int32_t> digits = question(*data, Split::train, index);
    many += std::set<int32_t>(digits.begin(), digits.end()).size() > 3;
  }
  // 67600 of 10^6 sequences have at most three different digits; a draw of the others is kept half
  // of the time: 0.4662 / 0.5338 of what is kept, give or take four standard deviations.
  CHECK(std::fabs(many / double{draws} - 0.8734) < 4 * std::sqrt(0.8734 * 0.1266 / draws));
}

TEST_CASE("an adder sample is two numbers and their sum with the lowest digit first") {
  for (int64_t digits : {1, 2, 3}) {
    const auto data = adder_dataset(7, digits);
    CHECK(data->vocabulary() == 10);
    CHECK(data->block_size() == 3 * digits);
    for (Split split : {Split::train, Split::validation})
      for (int64_t index = 0; index < 100; ++index) {
        auto [tokens, targets] = sample(*data, split, index);
        tokens.push_back(targets.back());
        int64_t place = 0, a = 0, b = 0, sum = 0;
        for (; place < digits; ++place) a = 10 * a + tokens[static_cast<size_t>(place)];
        for (; place < 2 * digits; ++place) b = 10 * b + tokens[static_cast<size_t>(place)];
        for (int64_t i = 3 * digits; i >= place; --i)
          sum = 10 * sum + tokens[static_cast<size_t>(i)];
        CHECK(a + b == sum);
        CHECK(std::ranges::count(targets, -1) == 2 * digits - 1);
        CHECK(std::equal(targets.begin() + 2 * digits - 1, targets.end(),
                         tokens.begin() + 2 * digits));
      }
  }
}

TEST_CASE("adder holds out a fifth of the problems but at most 500, and never trains on them") {
  const int64_t held_out[] = {20, 500, 500}, problems[] = {100, 10000, 1000000};
  for (int64_t digits : {1, 2, 3}) {
    const auto data = adder_dataset(11, digits);
    const int64_t count = data->epoch_samples(Split::validation);
    CHECK(count == held_out[digits - 1]);
    CHECK(data->epoch_samples(Split::train) == problems[digits - 1] - count);
    std::set<std::vector<int32_t>> validation;
    for (int64_t index = 0; index < count; ++index)
      validation.insert(question(*data, Split::validation, index));
    CHECK(static_cast<int64_t>(validation.size()) == count);
    CHECK(question(*data, Split::validation, count + 3) == question(*data, Split::validation, 3));
    int trained = 0;
    for (int64_t index = 0; index < 5000; ++index)
      trained += validation.contains(question(*data, Split::train, index));
    CHECK(trained == 0);
  }
}

TEST_CASE("a batch holds the samples from its first index on, however the batches are divided") {
  const Device device = Device::cpu();
  const auto sort = sort_dataset(3), adder = adder_dataset(3);
  for (const Dataset* data : {sort.get(), adder.get()}) {
    const int64_t T = data->block_size();
    const Batch whole = data->batch(Split::train, 100, 6, device);
    CHECK(whole.ids.shape() == Shape{6, T});
    std::vector<int32_t> ids, targets;
    for (int64_t first : {100, 102, 104}) {
      const Batch part = data->batch(Split::train, first, 2, device);
      for (int32_t id : part.ids.to_host<int32_t>()) ids.push_back(id);
      for (int32_t target : part.targets.to_host<int32_t>()) targets.push_back(target);
    }
    CHECK(whole.ids.to_host<int32_t>() == ids);
    CHECK(whole.targets.to_host<int32_t>() == targets);
    CHECK(std::equal(ids.begin(), ids.begin() + T, sample(*data, Split::train, 100).ids.begin()));
  }
  const auto differently = sort_dataset(4);
  CHECK(sort->batch(Split::train, 0, 50, device).ids.to_host<int32_t>() !=
        differently->batch(Split::train, 0, 50, device).ids.to_host<int32_t>());
}

TEST_CASE("a batch on a meta device has shapes only") {
  const Batch batch = sort_dataset(1)->batch(Split::train, 0, 4, Device::meta());
  CHECK(batch.targets.shape() == Shape{4, 11});
  CHECK(batch.targets.dtype() == DType::i32);
  CHECK(batch.targets.raw() == nullptr);
}

TEST_CASE("task datasets refuse invalid sizes, batch ranges, encode and decode") {
  CHECK_THROWS_AS(sort_dataset(1, 0, 3), ConfigError);
  CHECK_THROWS_AS(sort_dataset(1, 6, 1), ConfigError);
  CHECK_THROWS_AS(sort_dataset(1, 1025, 3), ConfigError);
  CHECK_THROWS_WITH_AS(adder_dataset(1, 4), "adder_dataset: expected 1, 2 or 3 digits, got 4",
                       ConfigError);
  const auto data = sort_dataset(1);
  CHECK_THROWS_AS(data->batch(Split::train, -1, 2, Device::cpu()), ConfigError);
  CHECK_THROWS_AS(data->batch(Split::train, 0, 0, Device::cpu()), ConfigError);
  CHECK_THROWS_AS(data->encode("abc"), ConfigError);
  CHECK_THROWS_AS(data->decode({0, 1}), ConfigError);
  CHECK_FALSE(data->is_text());
}
