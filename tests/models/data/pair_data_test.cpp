#include "zerograd/models/data/pair_data.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace zg::testing {
namespace {

using models::PairDataset;
using models::read_pairs;
using models::Split;
using models::TokenPair;

/// The bytes of a text.
std::vector<int32_t> letters(const std::string& text, int64_t limit) {
  return {text.begin(), text.begin() + std::min<int64_t>(limit, std::ssize(text))};
}

/// `count` pairs; the source of pair i is i, as often as i % 5 + 1.
std::vector<TokenPair> numbered(int count) {
  std::vector<TokenPair> pairs;
  for (int i = 0; i < count; ++i) {
    const std::vector<int32_t> source(static_cast<size_t>(i % 5 + 1), i);
    pairs.push_back({source, {i, i + 1}});
  }
  return pairs;
}

}  // namespace

TEST_CASE("pairs are read from lines of JSON, by any keys, and cut to the limits") {
  const TemporaryFolder folder;
  const std::string path = folder / "pairs.jsonl";
  write_file(path,
             "{\"source\": \"abc\", \"target\": \"de\", \"more\": 1}\r\n\n  \n"
             "{\"target\": \"\\u00e9\", \"source\": \"f\"}");
  CHECK(read_pairs(path, letters) ==
        std::vector<TokenPair>{
            {{'a', 'b', 'c'}, {'d', 'e'}},
            {{'f'}, {static_cast<signed char>(0xc3), static_cast<signed char>(0xa9)}}});
  const models::PairFileOptions swapped{
      .source_key = "target", .target_key = "source", .max_source = 1, .max_target = 2};
  CHECK(read_pairs(path, letters, swapped) ==
        std::vector<TokenPair>{{{'d'}, {'a', 'b'}}, {{static_cast<signed char>(0xc3)}, {'f'}}});
  // Tokens beyond the limit are cut even if `encode` returns them.
  const auto whole = [](const std::string& text, int64_t) { return letters(text, 100); };
  CHECK(read_pairs(path, whole, swapped).at(0) == TokenPair{{'d'}, {'a', 'b'}});
}

TEST_CASE("an invalid file of pairs is refused with its line") {
  const TemporaryFolder folder;
  const std::string path = folder / "pairs.jsonl";
  const std::string good = "{\"source\": \"a\", \"target\": \"b\"}\n";
  const struct {
    std::string line;
    const char* part;
  } files[] = {{"[1]", ":2:1: expected a JSON object, got [1]"},
               {"{\"source\": \"a\"", ":2:15: is not JSON: "},
               {"{\"source\": \"a\"}", ":2: target: expected"},
               {"{\"source\": 3, \"target\": \"b\"}", ":2: source: expected"}};
  for (const auto& file : files) {
    CAPTURE(file.line);
    write_file(path, good + file.line + "\n");
    CHECK_ERROR(FileError, file.part, read_pairs(path, letters));
  }
  write_file(path, good + "{\"source\": \"\", \"target\": \"b\"}");
  CHECK_ERROR(ConfigError, ":2: source has no tokens; expected one or more",
              read_pairs(path, letters));
  write_file(path, "\n\n");
  CHECK_ERROR(ConfigError,
              "no pairs; expected a line such as {\"source\": \"Hi\", \"target\": \"Hello\"}",
              read_pairs(path, letters));
  CHECK_ERROR(ConfigError, "max_target is 0; expected 1 or more",
              read_pairs(path, letters, {.max_target = 0}));
  CHECK(message_of<FileError>([&] { read_pairs(folder / "none", letters); }) != "");
}

TEST_CASE("each epoch of pairs has every pair once, in an order of its own") {
  const PairDataset data(numbered(20), {.validation_fraction = 0.25, .seed = 7});
  REQUIRE(data.epoch_samples(Split::train) == 15);
  REQUIRE(data.epoch_samples(Split::validation) == 5);
  std::vector<std::vector<int32_t>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<int32_t> order;
    for (const TokenPair& pair : data.samples(Split::train, epoch * 15, 15))
      order.push_back(pair.source[0]);
    CHECK(std::set<int32_t>(order.begin(), order.end()).size() == 15);
    CHECK(*std::ranges::max_element(order) == 14);
    orders.push_back(order);
  }
  CHECK(orders[0] != orders[1]);
  CHECK(orders[1] != orders[2]);
  for (int i = 0; i < 10; ++i) CHECK(data.sample(Split::validation, i).source[0] == 15 + i % 5);
  const PairDataset other(numbered(20), {.validation_fraction = 0.25, .seed = 8});
  CHECK(other.samples(Split::train, 0, 15) != data.samples(Split::train, 0, 15));
  const PairDataset in_order(numbered(20), {.order = models::Order::sequential});
  for (int i = 0; i < 40; ++i) CHECK(in_order.sample(Split::train, i).source[0] == i % 18);
}

TEST_CASE("the longest pair of a step is a function of the step's samples") {
  const PairDataset data(numbered(20),
                         {.validation_fraction = 0.0, .order = models::Order::sequential});
  CHECK(data.longest(Split::train, 0, 3) == PairDataset::Lengths{3, 2});
  CHECK(data.longest(Split::train, 3, 2) == PairDataset::Lengths{5, 2});
  CHECK(data.longest(Split::train, 20, 1) == PairDataset::Lengths{1, 2});
  CHECK(data.longest() == PairDataset::Lengths{5, 2});
  CHECK(data.vocabulary() == 21);
  CHECK_ERROR(ConfigError, "there is no validation split", data.sample(Split::validation, 0));
  const PairDataset whole(numbered(3), {.validation_fraction = 1.0});  // to evaluate a whole file
  CHECK(whole.epoch_samples(Split::validation) == 3);
  CHECK_ERROR(ConfigError, "there is no training split", whole.sample(Split::train, 0));
  for (const double fraction : {-0.1, 1.1, std::nan("")})
    CHECK_ERROR(ConfigError, "expected a number from 0 to 1",
                PairDataset(numbered(3), {.validation_fraction = fraction}));
  CHECK(contains(message_of<ConfigError>([] { PairDataset({}); }), "none is left to train on"));
}

}  // namespace zg::testing
