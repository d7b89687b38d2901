#include "zerograd/zero/states/slices.h"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <vector>

using namespace zg;
using namespace zg::zero;

namespace {

Slice random_slice(std::mt19937& random, int64_t whole) {
  const auto up_to = [&](int64_t n) {
    return std::uniform_int_distribution<int64_t>(0, n)(random);
  };
  std::vector<int64_t> divisors;
  for (int64_t n = 1; n <= whole; ++n)
    if (whole % n == 0) divisors.push_back(n);
  const int64_t outer =
      divisors[static_cast<size_t>(up_to(static_cast<int64_t>(divisors.size()) - 1))];
  const int64_t block = whole / outer;
  int64_t inner = 1 + up_to(block - 1);
  while (block % inner) --inner;
  const int64_t extent = block / inner, begin = up_to(extent);
  return {.outer = outer,
          .extent = extent,
          .begin = begin,
          .rows = up_to(extent - begin),
          .inner = inner};
}

}  // namespace

TEST_CASE("what two parts of a parameter have in common is found, run by run") {
  std::mt19937 random(7);
  for (int i = 0; i < 400; ++i) {
    const int64_t whole = std::uniform_int_distribution<int64_t>(1, 60)(random);
    const Slice a = random_slice(random, whole), b = random_slice(random, whole);
    std::map<int64_t, int64_t> place_in_b;  // index in the whole to index in b
    for (int64_t j = 0; j < b.numel(); ++j) place_in_b[b.whole_index(j)] = j;
    const int64_t first = std::uniform_int_distribution<int64_t>(0, a.numel())(random);
    const int64_t last = std::uniform_int_distribution<int64_t>(first, a.numel())(random);
    std::map<int64_t, int64_t> expected, found;
    for (int64_t k = first; k < last; ++k)
      if (const auto there = place_in_b.find(a.whole_index(k)); there != place_in_b.end())
        expected[k] = there->second;
    int64_t end = first;
    for_each_common(a, first, last, b, [&](int64_t in_a, int64_t in_b, int64_t count) {
      CHECK(in_a >= end);
      CHECK(count > 0);
      for (int64_t k = 0; k < count; ++k) found[in_a + k] = in_b + k;
      end = in_a + count;
    });
    CHECK(found == expected);
  }
}
