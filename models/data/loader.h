#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "zerograd/models/data/data.h"

// Batches that threads make in advance. Their order is a function of the seed: it depends neither
// on threads, ranks nor restarts.
namespace zg::models {

/// The samples of each batch. Epochs follow one another, so a batch may have samples of two.
struct LoadOrder {
  int64_t samples = 0;  ///< of an epoch
  int64_t batch = 1;    ///< samples of a batch
  Order order = Order::random;
  uint64_t seed = 3407;
  /// The length of a sample. With it samples of similar length share a batch, so that little is
  /// padded: the samples of `window` batches are sorted by length, and these batches are shuffled.
  /// It is called for all samples of a window at each batch, by several threads.
  std::function<int64_t(int64_t sample)> length = {};
  int64_t window = 50;
};

/// The samples of batch `number`, from 0 on. ConfigError for sizes below 1.
ZG_API std::vector<int64_t> samples_of_batch(const LoadOrder& order, int64_t number);

struct LoaderOptions {
  int workers = 1;       ///< threads; 0: next() makes the batch
  int64_t prefetch = 2;  ///< batches that are made or wait while the program computes, at least 1
  int64_t first = 0;     ///< number of the first batch: the rank's, and after a resume the next one
  int64_t stride = 1;    ///< from one batch to the next: the number of ranks
};

/// Results of a function of the numbers first, first + stride, ..., computed by threads and taken
/// in this order. Throws ConfigError for options out of range.
class ZG_API OrderedResults {
 public:
  using Make = std::function<std::shared_ptr<void>(int64_t number)>;
  explicit OrderedResults(const LoaderOptions& options, Make make);
  ~OrderedResults();             ///< waits for running calls
  std::shared_ptr<void> take();  ///< throws what the call has thrown

 private:
  std::unique_ptr<struct OrderedResultsState> state_;
};

/// Batches of one's own type T in the order of LoadOrder. `make` runs on worker threads, several at
/// a time: it makes vectors, not tensors, because one thread uses a device.
///
///     Loader<Rows> loader({.samples = count, .batch = 16, .length = length},
///                         [&](const std::vector<int64_t>& samples) { return rows_of(samples); },
///                         {.workers = 2});
///     const Tensor ids = padded(loader.next(), /*padding=*/0, device);
template <class T>
class Loader {
 public:
  Loader(LoadOrder order, std::function<T(const std::vector<int64_t>& samples)> make,
         const LoaderOptions& options = {})
      : results_(options, [order = std::move(order), make = std::move(make)](int64_t number) {
          return std::make_shared<T>(make(samples_of_batch(order, number)));
        }) {}
  T next() { return std::move(*std::static_pointer_cast<T>(results_.take())); }

 private:
  OrderedResults results_;
};

/// Rows of tokens as [rows, length] i32, padded at the end; `length` 0: to the longest. Throws
/// ConfigError for no rows, an empty row or one that is too long, with `name` for a row.
ZG_API Tensor padded(const std::vector<std::vector<int32_t>>& rows, int32_t padding,
                     const Device& device, int64_t length = 0, const char* name = "row");

}  // namespace zg::models
