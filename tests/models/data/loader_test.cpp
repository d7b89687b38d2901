#include "zerograd/models/data/loader.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <vector>

#include "tests/support/error_message.h"

using namespace zg;
using namespace zg::models;

namespace {

using Samples = std::vector<int64_t>;

int64_t odd_length(int64_t sample) { return 1 + sample * sample % 17; }

std::vector<Samples> batches(const LoadOrder& order, int64_t count, const LoaderOptions& options) {
  Loader<Samples> loader(
      order, [](const Samples& samples) { return samples; }, options);
  std::vector<Samples> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(loader.next());
  return all;
}

}  // namespace

TEST_CASE("a loader's batches are a function of the seed, for any threads, ranks and first batch") {
  for (const bool by_length : {false, true}) {
    CAPTURE(by_length);
    LoadOrder order{.samples = 103, .batch = 4, .window = 5};
    if (by_length) order.length = odd_length;
    const std::vector<Samples> expected = batches(order, 40, {.workers = 0});
    for (const int workers : {1, 3})
      CHECK(batches(order, 40, {.workers = workers, .prefetch = 4}) == expected);
    const std::vector<Samples> second =
        batches(order, 10, {.workers = 2, .first = 21, .stride = 2});
    for (size_t i = 0; i < second.size(); ++i) CHECK(second[i] == expected[21 + 2 * i]);
    order.seed = 1;
    CHECK(batches(order, 40, {.workers = 0}) != expected);

    // Every sample once in an epoch.
    order.samples = 100;
    std::multiset<int64_t> seen;
    for (const Samples& batch : batches(order, 25, {})) seen.insert(batch.begin(), batch.end());
    CHECK(seen.size() == 100);
    CHECK(std::set<int64_t>(seen.begin(), seen.end()).size() == 100);
  }
}

TEST_CASE("batches by length pad less, in an order that is not that of the lengths") {
  LoadOrder order{.samples = 1000, .batch = 10, .window = 20};
  const auto padding = [&] {
    int64_t sum = 0;
    std::vector<int64_t> longest;
    for (const Samples& samples : batches(order, 100, {})) {
      int64_t most = 0;
      for (const int64_t sample : samples) most = std::max(most, odd_length(sample));
      for (const int64_t sample : samples) sum += most - odd_length(sample);
      longest.push_back(most);
    }
    CHECK_FALSE(std::is_sorted(longest.begin(), longest.begin() + 20));
    return sum;
  };
  const int64_t random = padding();
  order.length = odd_length;
  const int64_t sorted = padding();
  CAPTURE(random);
  CAPTURE(sorted);
  CHECK(5 * sorted < random);
}

TEST_CASE("a loader prefetches no more than it may, passes errors on, and ends in the middle") {
  std::atomic<int64_t> made = 0;
  {
    Loader<int64_t> loader({.samples = 10, .order = Order::sequential},
                           [&](const Samples& samples) {
                             ++made;
                             if (samples[0] == 2) throw ConfigError("sample 2");
                             return samples[0];
                           },
                           {.workers = 2, .prefetch = 3});
    CHECK(loader.next() == 0);
    CHECK(loader.next() == 1);
    CHECK_THROWS_WITH_AS(loader.next(), "sample 2", ConfigError);
    CHECK(loader.next() == 3);
    CHECK(made <= 7);
  }
  CHECK(made <= 7);
  CHECK_THROWS_WITH_AS(batches({.samples = 0}, 1, {}), "loader: samples: expected 1 or more, got 0",
                       ConfigError);
  CHECK_THROWS_WITH_AS(batches({.samples = 1}, 1, {.prefetch = 0}),
                       "loader: prefetch: expected 1 or more, got 0", ConfigError);
  CHECK_THROWS_WITH_AS(batches({.samples = 1}, 1, {.stride = 0}),
                       "loader: stride: expected 1 or more, got 0", ConfigError);
  CHECK_THROWS_WITH_AS(batches({.samples = 1}, 1, {.first = -1}),
                       "loader: first: expected 0 or more, got -1", ConfigError);
  CHECK_THROWS_WITH_AS(models::samples_of_batch({.samples = 1}, -1),
                       "loader: batch: expected 0 or more, got -1", ConfigError);
}

TEST_CASE("rows are padded to the longest or to a length") {
  const Device device = Device::cpu();
  const Tensor ids = padded({{1, 2, 3}, {4}}, -1, device);
  CHECK(ids.shape() == Shape{2, 3});
  CHECK(ids.to_host<int32_t>() == std::vector<int32_t>{1, 2, 3, 4, -1, -1});
  CHECK(padded({{1}}, 0, device, 4).shape() == Shape{1, 4});
  CHECK_THROWS_WITH_AS(padded({{1, 2}}, 0, device, 1),
                       "padded_batch: a row of 2 tokens; expected at most 1", ConfigError);
  CHECK_THROWS_WITH_AS(padded({{1}, {}}, 0, device), "padded_batch: a row without tokens",
                       ConfigError);
}
