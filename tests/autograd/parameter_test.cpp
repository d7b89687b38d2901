#include "zerograd/autograd/parameter.h"

#include <cmath>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/random.h"

using namespace zg;

namespace {

std::vector<float> initial_elements(const Init& init, uint64_t seed, const std::string& name,
                                    int64_t begin, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  initialise(init, seed, name, begin, values);
  return values;
}

}  // namespace

TEST_CASE("an element's initial value depends only on seed, parameter name and index") {
  const Init init = Init::normal(0.02f);
  const std::vector<float> whole = initial_elements(init, 3407, "h.0.weight", 0, 1001);
  for (int64_t begin : {0, 1, 2, 499, 500, 1000})
    for (int64_t count : {0, 1, 2, 31, 501}) {
      if (begin + count > 1001) continue;
      const std::vector<float> expected(whole.begin() + begin, whole.begin() + begin + count);
      CHECK(initial_elements(init, 3407, "h.0.weight", begin, count) == expected);
    }
  CHECK(initial_elements(init, 3408, "h.0.weight", 0, 1001) != whole);
  CHECK(initial_elements(init, 3407, "h.1.weight", 0, 1001) != whole);
}

TEST_CASE("initial values from element 2^33 on differ from the first ones") {
  const Init init = Init::normal(1.0f);
  CHECK(initial_elements(init, 1, "w", int64_t{1} << 33, 8) !=
        initial_elements(init, 1, "w", 0, 8));
}

TEST_CASE("normal initial values are Box-Muller of the documented Philox words") {
  const uint64_t hash = hash_name("wte");
  const Philox::Block words =
      Philox::block({7, 0, static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32)}, 42);
  const auto open = [](uint32_t high, uint32_t low) {
    const double bits = std::floor((high * 4294967296.0 + low) / 4096.0);
    return (bits + 0.5) / 4503599627370496.0;
  };
  const double radius = 0.5 * std::sqrt(-2.0 * std::log(open(words[0], words[1])));
  const double angle = 2.0 * M_PI * open(words[2], words[3]);
  const std::vector<float> pair = initial_elements(Init::normal(0.5f), 42, "wte", 14, 2);
  // Each side rounds once to f32: 2^-24 relative, and the doubles differ by far less.
  CHECK(std::fabs(pair[0] - radius * std::cos(angle)) <= 0x1p-23 * std::fabs(pair[0]));
  CHECK(std::fabs(pair[1] - radius * std::sin(angle)) <= 0x1p-23 * std::fabs(pair[1]));
}

TEST_CASE("uniform initial values fill their interval evenly, also in parts") {
  const double n = 1 << 20, bound = 0.25;
  const std::vector<float> values = initial_elements(Init::uniform(0.25f), 9, "w", 0, 1 << 20);
  double sum = 0.0, squares = 0.0, neighbours = 0.0, largest = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = values[i] / bound;
    sum += x;
    squares += x * x;
    largest = std::max(largest, std::fabs(x));
    if (i > 0) neighbours += x * values[i - 1] / bound;
  }
  // Five standard errors each: variances of x, x^2 and x y are 1/3, 4/45 and 1/9.
  CHECK(std::fabs(sum / n) < 5 * std::sqrt(1.0 / 3.0 / n));
  CHECK(std::fabs(squares / n - 1.0 / 3.0) < 5 * std::sqrt(4.0 / 45.0 / n));
  CHECK(std::fabs(neighbours / n) < 5 * std::sqrt(1.0 / 9.0 / n));
  CHECK(largest <= 1.0);
  CHECK(largest > 0.9999);  // the chance of less is 1e-45
  for (const int64_t begin : {1, 2, 777})
    CHECK(initial_elements(Init::uniform(0.25f), 9, "w", begin, 5) ==
          std::vector<float>(values.begin() + begin, values.begin() + begin + 5));
}

TEST_CASE("normals have the moments of the normal distribution") {
  const double n = 1 << 20;
  double sum = 0.0, squares = 0.0, fourths = 0.0, neighbours = 0.0;
  const std::vector<float> values = initial_elements(Init::normal(1.0f), 9, "w", 0, 1 << 20);
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    sum += x;
    squares += x * x;
    fourths += x * x * x * x;
    if (i > 0) neighbours += x * values[i - 1];
  }
  // Five standard errors each: variances of x, x^2, x^4 and x y are 1, 2, 96 and 1.
  CHECK(std::fabs(sum / n) < 5 / std::sqrt(n));
  CHECK(std::fabs(squares / n - 1) < 5 * std::sqrt(2 / n));
  CHECK(std::fabs(fourths / n - 3) < 5 * std::sqrt(96 / n));
  CHECK(std::fabs(neighbours / n) < 5 / std::sqrt(n));
}

TEST_CASE("Init::zeros and Init::ones fill with zeros and ones") {
  CHECK(initial_elements(Init::zeros(), 1, "b", 5, 3) == std::vector<float>{0, 0, 0});
  CHECK(initial_elements(Init::ones(), 1, "b", 5, 3) == std::vector<float>{1, 1, 1});
}

TEST_CASE(
    "ParameterStore keeps order, finds by name and refuses taken names and units of other stores") {
  ParameterStore store, other;
  const Unit& embeddings = store.unit("embeddings");
  const Unit& block = store.unit("block");
  const Parameter& b = store.add(block, "b", {4}, Init::zeros());
  const Parameter& a =
      store.add(block, "a", {3, 4}, Init::normal(0.02f), {.decay = true, .trainable = false});
  CHECK(embeddings.parameters.empty());
  CHECK(block.parameters == std::vector<const Parameter*>{&b, &a});
  CHECK(a.unit == &block);
  CHECK(a.index == 1);
  CHECK(a.decay);
  CHECK_FALSE(a.trainable);
  CHECK(b.trainable);
  CHECK(store.find("a") == &a);
  CHECK(store.find("c") == nullptr);
  CHECK(store.by_name().begin()->second == &a);
  CHECK(store.numel() == 16);
  CHECK_THROWS_WITH_AS(store.unit("block"), "unit: the name 'block' is taken; expected a new one",
                       ConfigError);
  CHECK_THROWS_WITH_AS(store.add(embeddings, "a", {1}, Init::zeros()),
                       "add: the parameter name 'a' is taken; expected a new one", ConfigError);
  CHECK_THROWS_WITH_AS(other.add(block, "c", {1}, Init::zeros()),
                       "add: unit 'block' of parameter 'c' belongs to another store", ConfigError);
}

TEST_CASE("a slice of a parameter gets the initial values of the same elements of the whole") {
  ParameterStore store;
  const Unit& unit = store.unit("u");
  const Init init = Init::normal(0.02f);
  const Shape whole{6, 8};
  const std::vector<float> expected = initial_elements(init, 7, "w", 0, whole.numel());
  struct Share {
    const char* name;
    Shape shape;
    Slice slice;
  };
  const Share shares[] = {
      {"rows", {2, 8}, {.extent = 6, .begin = 4, .rows = 2, .inner = 8}},
      {"columns", {6, 3}, {.outer = 6, .extent = 8, .begin = 5, .rows = 3}},
      {"three side by side", {3, 8}, {.outer = 3, .extent = 2, .begin = 1, .rows = 1, .inner = 8}},
  };
  for (const Share& share : shares) {
    CAPTURE(share.name);
    ParameterStore part;
    const Parameter& parameter =
        part.add(part.unit("u"), "w", share.shape, init, {.whole = whole, .slice = share.slice});
    CHECK(parameter.whole == whole);
    const Slice& s = parameter.slice;
    std::vector<float> wanted;
    for (int64_t block = 0; block < s.outer; ++block)
      for (int64_t i = s.begin * s.inner; i < (s.begin + s.rows) * s.inner; ++i)
        wanted.push_back(expected[static_cast<size_t>(block * s.extent * s.inner + i)]);
    for (const int64_t begin : {0, 1, 7}) {
      std::vector<float> values(wanted.size() - static_cast<size_t>(begin));
      initialise(parameter, 7, begin, values);
      CHECK(values == std::vector<float>(wanted.begin() + begin, wanted.end()));
    }
  }
  CHECK(store.add(unit, "whole", whole, init).slice.is_whole());
}

TEST_CASE("a slice that does not fit its parameter is refused") {
  ParameterStore store;
  const Unit& unit = store.unit("u");
  const auto add = [&](const Shape& shape, const Slice& slice) {
    store.add(unit, "w", shape, Init::zeros(), {.whole = {6, 8}, .slice = slice});
  };
  CHECK_THROWS_WITH_AS(add({2, 8}, {.extent = 6, .begin = 5, .rows = 2, .inner = 8}),
                       "add: parameter 'w' [2, 8] does not fit its slice of [6, 8]: 1 "
                       "x rows 5 to 7 of 6 x 8; expected the same number of elements, inside it",
                       ShapeError);
  CHECK_THROWS_AS(add({3, 8}, {.extent = 6, .begin = 0, .rows = 2, .inner = 8}), ShapeError);
  CHECK_THROWS_AS(add({2, 8}, {.extent = 7, .begin = 0, .rows = 2, .inner = 8}), ShapeError);
  CHECK_THROWS_AS(add({2, 8}, {.extent = 6, .begin = -1, .rows = 2, .inner = 8}), ShapeError);
}
