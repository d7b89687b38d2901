#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace zg::testing {

/// Rows of indices, where index i is below sizes[i]. Each pair of values of two indices is in a
/// row. Built greedily, so there are not many more rows than the product of the two largest sizes.
inline std::vector<std::vector<size_t>> pairwise_rows(const std::vector<size_t>& sizes) {
  using Pair = std::array<size_t, 4>;  // an index and its value, a later index and its value
  constexpr size_t open = SIZE_MAX;
  std::set<Pair> missing;
  for (size_t a = 0; a < sizes.size(); ++a)
    for (size_t b = a + 1; b < sizes.size(); ++b)
      for (size_t i = 0; i < sizes[a]; ++i)
        for (size_t j = 0; j < sizes[b]; ++j) missing.insert({a, i, b, j});
  std::vector<std::vector<size_t>> rows;
  while (!missing.empty()) {
    const auto [first, i, second, j] = *missing.begin();
    std::vector<size_t> row(sizes.size(), open);
    row[first] = i;
    row[second] = j;
    const auto pair_of = [&row](size_t a, size_t b) {
      return a < b ? Pair{a, row[a], b, row[b]} : Pair{b, row[b], a, row[a]};
    };
    for (size_t at = 0; at < row.size(); ++at) {
      if (row[at] != open) continue;
      size_t best = 0, most = 0;
      for (size_t value = 0; value < sizes[at]; ++value) {
        row[at] = value;
        size_t covered = 0;
        for (size_t other = 0; other < row.size(); ++other)
          covered += other != at && row[other] != open && missing.contains(pair_of(other, at));
        if (covered > most) {
          most = covered;
          best = value;
        }
      }
      // Rows without a missing pair here vary the value, too.
      row[at] = most > 0 ? best : rows.size() % sizes[at];
    }
    for (size_t a = 0; a < row.size(); ++a)
      for (size_t b = a + 1; b < row.size(); ++b) missing.erase(pair_of(a, b));
    rows.push_back(std::move(row));
  }
  return rows;
}

/// The seed of settings drawn at random: ZG_COVER_SEED, else 1. tools/verify sets it to another one
/// each time.
inline uint64_t cover_seed() {
  const char* given = std::getenv("ZG_COVER_SEED");
  return given ? std::stoull(given) : 1;
}

/// The same and a random row. Its seed is printed.
inline std::vector<std::vector<size_t>> cover_rows(const std::vector<size_t>& sizes) {
  std::vector<std::vector<size_t>> rows = pairwise_rows(sizes);
  const uint64_t seed = cover_seed();
  std::mt19937_64 random(seed);
  std::vector<size_t>& drawn = rows.emplace_back();
  for (const size_t size : sizes) drawn.push_back(random() % size);
  MESSAGE(rows.size(), " settings, the last one by ZG_COVER_SEED=", seed);
  return rows;
}

/// Calls f with one element of each list, so that each pair of elements of two lists comes
/// together, and once with random elements.
template <class F, class... Lists>
void for_cover(const F& f, const Lists&... lists) {
  const auto call = [&]<size_t... I>(const std::vector<size_t>& row, std::index_sequence<I...>) {
    f(lists[row[I]]...);
  };
  for (const std::vector<size_t>& row : cover_rows({std::size(lists)...}))
    call(row, std::index_sequence_for<Lists...>());
}

}  // namespace zg::testing
