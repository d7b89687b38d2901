#include "zerograd/models/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "zerograd/models/data/indexed_dataset.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

std::vector<int64_t> samples_of_batch(const LoadOrder& order, int64_t number) {
  for (const auto& [name, value] :
       {std::pair("samples", order.samples), {"batch", order.batch}, {"window", order.window}})
    if (value < 1) raise<ConfigError>("loader: {}: expected 1 or more, got {}", name, value);
  if (number < 0) raise<ConfigError>("loader: batch: expected 0 or more, got {}", number);
  const auto shuffled = [&](const char* purpose, int64_t index, int64_t n, int64_t place) {
    return order.order == Order::sequential
               ? place
               : Permutation(order.seed, purpose, static_cast<uint64_t>(index), n)(place);
  };
  const auto range = [&](int64_t begin, int64_t count) {
    std::vector<int64_t> samples;
    for (int64_t i = begin; i < begin + count; ++i)
      samples.push_back(shuffled("loader", i / order.samples, order.samples, i % order.samples));
    return samples;
  };
  if (!order.length) return range(number * order.batch, order.batch);
  const int64_t window = number / order.window;
  std::vector<int64_t> all = range(window * order.window * order.batch, order.window * order.batch);
  std::vector<std::pair<int64_t, int64_t>> sorted;  // length, sample
  for (const int64_t sample : all) sorted.emplace_back(order.length(sample), sample);
  std::ranges::stable_sort(sorted, [](const auto& a, const auto& b) { return a.first < b.first; });
  const int64_t chosen = shuffled("loader windows", window, order.window, number % order.window);
  all.clear();
  for (int64_t i = 0; i < order.batch; ++i)
    all.push_back(sorted[static_cast<size_t>(chosen * order.batch + i)].second);
  return all;
}

struct OrderedResultsState {
  struct Result {
    std::shared_ptr<void> value;
    std::exception_ptr error;
  };
  OrderedResults::Make make;
  LoaderOptions options;
  int64_t started = 0, taken = 0;
  bool ends = false;
  std::map<int64_t, Result> done;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::thread> threads;

  // Also when the system refuses a thread.
  ~OrderedResultsState() {
    {
      const std::lock_guard lock(mutex);
      ends = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  Result run(int64_t number) const {
    try {
      return {make(options.first + number * options.stride), nullptr};
    } catch (...) {
      return {nullptr, std::current_exception()};
    }
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return ends || started < taken + options.prefetch; });
      if (ends) return;
      const int64_t number = started++;
      lock.unlock();
      Result result = run(number);
      lock.lock();
      done.emplace(number, std::move(result));
      changed.notify_all();
    }
  }
};

OrderedResults::OrderedResults(const LoaderOptions& options, Make make)
    : state_(std::make_unique<OrderedResultsState>()) {
  for (const auto& [name, value, least] : {std::tuple("workers", int64_t{options.workers}, 0),
                                           {"prefetch", options.prefetch, 1},
                                           {"first", options.first, 0},
                                           {"stride", options.stride, 1}})
    if (value < least)
      raise<ConfigError>("loader: {}: expected {} or more, got {}", name, least, value);
  state_->make = std::move(make);
  state_->options = options;
  for (int i = 0; i < options.workers; ++i)
    state_->threads.emplace_back([s = state_.get()] { s->work(); });
}

OrderedResults::~OrderedResults() = default;

std::shared_ptr<void> OrderedResults::take() {
  OrderedResultsState& s = *state_;
  OrderedResultsState::Result result;
  if (s.threads.empty()) {
    result = s.run(s.taken++);
  } else {
    std::unique_lock lock(s.mutex);
    s.changed.wait(lock, [&] { return s.done.contains(s.taken); });
    result = std::move(s.done.extract(s.taken).mapped());
    ++s.taken;
    s.changed.notify_all();
  }
  if (result.error) std::rethrow_exception(result.error);
  return result.value;
}

Tensor padded(const std::vector<std::vector<int32_t>>& rows, int32_t padding, const Device& device,
              int64_t length, const char* name) {
  if (rows.empty()) throw ConfigError("padded_batch: expected one row or more");
  int64_t longest = 0;
  for (const std::vector<int32_t>& row : rows) {
    if (row.empty()) raise<ConfigError>("padded_batch: a {} without tokens", name);
    longest = std::max(longest, std::ssize(row));
  }
  if (length == 0) length = longest;
  if (longest > length)
    raise<ConfigError>("padded_batch: a {} of {} tokens; expected at most {}", name, longest,
                       length);
  std::vector<int32_t> ids;
  for (const std::vector<int32_t>& row : rows) {
    ids.insert(ids.end(), row.begin(), row.end());
    ids.insert(ids.end(), static_cast<size_t>(length) - row.size(), padding);
  }
  return Tensor::from(ids, {std::ssize(rows), length}, device);
}

}  // namespace zg::models
