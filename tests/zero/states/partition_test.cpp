#include "zerograd/zero/states/partition.h"

#include <map>
#include <random>
#include <set>

#include "zerograd/runtime/random.h"

using namespace zg;
using zg::zero::FlatUnit;
using namespace zg::zero;

namespace {

/// Reproducible random numbers. A test that varies the seed prints it with CAPTURE.
struct Random {
  uint64_t seed;
  uint32_t calls = 0;
  int64_t integer(int64_t low, int64_t high) {
    return low + Philox::block({calls++, 0, 0, 0}, seed)[0] % (high - low + 1);
  }
};

void fill(ParameterStore& store, const Unit& unit, Random& random) {
  const int64_t count = random.integer(0, 12);
  for (int64_t i = 0; i < count; ++i) {
    const bool decay = random.integer(0, 1) == 1, trainable = random.integer(0, 3) > 0;
    store.add(unit, std::to_string(i), {random.integer(0, 300)}, Init::zeros(),
              {.decay = decay, .trainable = trainable});
  }
}

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

TEST_CASE("shards of a unit tile its parameters exactly, for any world size") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Random random{seed};
    ParameterStore store;
    const Unit& unit = store.unit("unit");
    fill(store, unit, random);
    const int world = static_cast<int>(random.integer(1, 17));
    std::set<const Parameter*> seen;
    for (FlatUnit::Part part : {FlatUnit::Part::trainable, FlatUnit::Part::frozen}) {
      const FlatUnit flat = FlatUnit::of(unit.parameters, part, world);
      CHECK(flat.padded % (world * FlatUnit::alignment) == 0);
      CHECK(flat.padded - flat.numel <
            (static_cast<int64_t>(flat.pieces.size()) + world) * FlatUnit::alignment);
      int64_t numel = 0, end = 0;
      for (const FlatUnit::Piece& piece : flat.pieces) {
        CHECK(seen.insert(piece.parameter).second);
        CHECK(piece.parameter->trainable == (part == FlatUnit::Part::trainable));
        CHECK(unit.parameters[piece.position] == piece.parameter);
        CHECK(piece.begin % FlatUnit::alignment == 0);
        CHECK(piece.begin >= end);
        CHECK(piece.numel() == piece.parameter->shape.numel());
        end = piece.end;
        numel += piece.numel();
      }
      CHECK(numel == flat.numel);
      CHECK(end <= flat.padded);

      // The shards, read in order of rank, give every element once and in order.
      std::vector<std::pair<const Parameter*, int64_t>> expected, elements;
      for (const FlatUnit::Piece& piece : flat.pieces)
        for (int64_t i = 0; i < piece.numel(); ++i) expected.emplace_back(piece.parameter, i);
      for (int rank = 0; rank < world; ++rank)
        for (const FlatUnit::Piece& piece : flat.shard(rank)) {
          CHECK(piece.begin % FlatUnit::alignment == 0);
          CHECK(piece.end <= flat.shard_numel());
          for (int64_t i = 0; i < piece.numel(); ++i)
            elements.emplace_back(piece.parameter, piece.offset + i);
        }
      CHECK(elements == expected);
    }
    CHECK(seen.size() == unit.parameters.size());
  }
}

TEST_CASE("a parameter starts at the same offset of its flat unit for every world size") {
  Random random{5};
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  fill(store, unit, random);
  const FlatUnit one = FlatUnit::of(unit.parameters, FlatUnit::Part::trainable);
  REQUIRE(one.pieces.size() > 1);
  for (int world : {2, 3, 8}) {
    const FlatUnit flat = FlatUnit::of(unit.parameters, FlatUnit::Part::trainable, world);
    for (size_t i = 0; i < one.pieces.size(); ++i)
      CHECK(flat.pieces[i].begin == one.pieces[i].begin);
  }
}

TEST_CASE("for_each_common finds the common elements of two slices as ordered runs") {
  std::mt19937 random(7);
  for (int i = 0; i < 400; ++i) {
    const int64_t whole = std::uniform_int_distribution<int64_t>(1, 60)(random);
    const Slice a = random_slice(random, whole), b = random_slice(random, whole);
    std::map<int64_t, int64_t> place_in_b;  // index in the whole parameter to index in b
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
