#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/data/indexed_dataset.h"
#include "zerograd/models/data/token_writer.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

using Ids = std::vector<int32_t>;

const std::string document_fixtures = std::string(ZG_FIXTURES) + "indexed/";

/// Ids and the last target: block_size + 1 tokens.
Ids sample_of(const Dataset& data, Split split, int64_t index) {
  Ids ids(static_cast<size_t>(data.block_size())), targets(ids.size());
  data.sample(split, index, ids.data(), targets.data());
  CHECK(std::equal(ids.begin() + 1, ids.end(), targets.begin()));
  ids.push_back(targets.back());
  return ids;
}

/// Documents of the given lengths, whose tokens count on: 0, 1, 2, ...
std::string counting_documents(const TemporaryFolder& folder, const std::vector<int>& lengths) {
  int32_t next = 0;
  const auto writer = indexed_dataset_writer(folder / "counting", 1 << 20);
  for (int length : lengths) {
    Ids document(static_cast<size_t>(length));
    for (int32_t& token : document) token = next++;
    writer->add_document(document);
  }
  writer->finish();
  return folder / "counting";
}

std::array<double, 3> weights_of(std::string split) {
  std::replace(split.begin(), split.end(), '/', ',');
  std::array<double, 3> weights{};
  std::sscanf(split.c_str(), "%lf,%lf,%lf", &weights[0], &weights[1], &weights[2]);
  return weights;
}

}  // namespace

TEST_CASE("samples of indexed_dataset in sequential order equal those of Megatron's GPT dataset") {
  const auto expected = nlohmann::json::parse(read_file(document_fixtures + "expected.json"));
  const auto data =
      indexed_dataset(document_fixtures + "uint16",
                      {.block_size = 16, .split = {1, 0, 0}, .order = Order::sequential});
  const auto& samples = expected["samples"];
  CHECK(data->vocabulary() == 50257);
  CHECK(data->epoch_samples(Split::train) == static_cast<int64_t>(samples.size()));
  CHECK(data->epoch_samples(Split::validation) == 0);
  for (size_t i = 0; i < 2 * samples.size(); ++i)
    CHECK(sample_of(*data, Split::train, static_cast<int64_t>(i)) ==
          samples[i % samples.size()].get<Ids>());
  CHECK(indexed_dataset(document_fixtures + "int32", {.block_size = 4})->vocabulary() == 250880);
}

TEST_CASE("indexed_dataset splits documents at the same borders as Megatron") {
  const auto expected = nlohmann::json::parse(read_file(document_fixtures + "expected.json"));
  for (const auto& row : expected["borders"]) {
    const TemporaryFolder folder;
    const int64_t documents = row["documents"];
    CAPTURE(row.dump());
    // A token each: samples of one token count them, less the last, which is a target only.
    const std::string prefix =
        counting_documents(folder, std::vector<int>(static_cast<size_t>(documents), 1));
    const std::vector<int64_t> at = row["at"];
    const DocumentOptions options{.block_size = 1,
                                  .split = weights_of(row["split"]),
                                  .order = Order::sequential,
                                  .vocabulary = 1 << 20};
    if (at[1] - at[0] < 2 || at[2] - at[1] == 1) {  // fewer than the two that a sample takes
      CHECK_THROWS_AS(indexed_dataset(prefix, options), ConfigError);
      continue;
    }
    const auto data = indexed_dataset(prefix, options);
    CHECK(data->epoch_samples(Split::train) == at[1] - 1);
    CHECK(data->epoch_samples(Split::validation) == std::max<int64_t>(0, at[2] - at[1] - 1));
    CHECK(sample_of(*data, Split::train, at[1] - 2).back() == at[1] - 1);
    if (at[2] == at[1]) continue;
    CHECK(sample_of(*data, Split::validation, 0).front() == at[1]);
    CHECK(sample_of(*data, Split::validation, at[2] - at[1] - 2).back() == at[2] - 1);
  }
}

TEST_CASE(
    "each epoch reads the tokens of its documents at most once, in a document order of its own") {
  const TemporaryFolder folder;
  std::vector<int> lengths;
  for (int i = 0; i < 300; ++i) lengths.push_back(i * 7 % 23);  // some have no token
  const std::string prefix = counting_documents(folder, lengths);
  const int T = 8;
  const auto data =
      indexed_dataset(prefix, {.block_size = T, .split = {8, 2, 0}, .seed = 5, .vocabulary = 4000});
  const int64_t samples = data->epoch_samples(Split::train);
  std::vector<int32_t> first_of;  // each document's first token, then where the next one begins
  int32_t tokens = 0;
  for (int i = 0; i < 240; ++i) {
    first_of.push_back(tokens);
    tokens += lengths[static_cast<size_t>(i)];
  }
  CHECK(samples == (tokens - 1) / T);

  std::set<std::vector<Ids>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::map<int32_t, int> inputs, targets;
    std::map<int32_t, int32_t> next;  // the token that follows one
    std::vector<Ids> cut;
    for (int64_t i = 0; i < samples; ++i) {
      const Ids sample = sample_of(*data, Split::train, epoch * samples + i);
      for (int t = 0; t < T; ++t) {
        ++inputs[sample[static_cast<size_t>(t)]];
        ++targets[sample[static_cast<size_t>(t + 1)]];
        next[sample[static_cast<size_t>(t)]] = sample[static_cast<size_t>(t + 1)];
      }
      cut.push_back(sample);
    }
    epochs.insert(cut);
    // Less than a sample is left over at the end.
    CHECK(static_cast<int64_t>(inputs.size()) == samples * T);
    CHECK(static_cast<int64_t>(targets.size()) == samples * T);
    CHECK(inputs.rbegin()->first < tokens);
    CHECK(targets.rbegin()->first < tokens);
    // Within a document each token is followed by its own next, at the end by another's first.
    int64_t documents_in_order = 0;
    for (const auto& [token, follower] : next) {
      const bool ends = token + 1 == tokens || std::ranges::binary_search(first_of, token + 1);
      if (!ends) CHECK(follower == token + 1);
      if (ends) CHECK(std::ranges::binary_search(first_of, follower));
      documents_in_order += ends && follower == token + 1;
    }
    CHECK(documents_in_order < 20);  // among 230 documents; a shuffled order gives about one
  }
  CHECK(epochs.size() == 3);

  for (int64_t i = 0; i < data->epoch_samples(Split::validation); ++i)
    CHECK(sample_of(*data, Split::validation, i).front() == tokens + i * T);
}

TEST_CASE(
    "a sample of indexed_dataset depends on seed and index, not on threads or the order of calls") {
  const TemporaryFolder folder;
  const std::string prefix = counting_documents(folder, std::vector<int>(200, 11));
  const DocumentOptions options{.block_size = 4, .seed = 3};
  const auto forward = indexed_dataset(prefix, options),
             backward = indexed_dataset(prefix, options);
  const int64_t samples = 5 * forward->epoch_samples(Split::train);
  std::vector<Ids> expected;
  for (int64_t i = 0; i < samples; ++i) expected.push_back(sample_of(*forward, Split::train, i));
  std::vector<Ids> got(expected.size());
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      for (int64_t i = samples - 1 - rank; i >= 0; i -= 4) {
        Ids ids(4), targets(4);
        backward->sample(Split::train, i, ids.data(), targets.data());
        ids.push_back(targets.back());
        got[static_cast<size_t>(i)] = ids;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(got == expected);
  const auto other = indexed_dataset(prefix, {.block_size = 4, .seed = 4});
  CHECK(sample_of(*other, Split::train, 0) != expected[0]);
}

TEST_CASE(
    "indexed_dataset refuses a split with too few tokens, invalid options and ids beyond the "
    "vocabulary") {
  const TemporaryFolder folder;
  const std::string prefix = counting_documents(folder, {9, 1});
  const auto message = [&](const DocumentOptions& options) {
    return message_of<ConfigError>([&] { indexed_dataset(prefix, options); });
  };
  CHECK(message({.block_size = 4, .split = {1, 1, 0}}) ==
        prefix +
            ".bin: split 1,1,0 of 2 documents is 9 tokens in 1 to train and 1 in 1 to "
            "validate; a block size of 4 needs 5 tokens of each; try a smaller block size or "
            "another split");
  CHECK(message({.block_size = 9, .split = {1, 0, 0}}) == "nothing was thrown");
  CHECK(message({.block_size = 10, .split = {1, 0, 0}}) != "nothing was thrown");
  for (const std::array<double, 3>& split :
       {std::array{0.0, 1.0, 0.0}, {1.0, -1.0, 0.0}, {std::nan(""), 1.0, 0.0}, {1e308, 1e308, 0.0}})
    CHECK(message({.block_size = 1, .split = split}).find("expected a block size from 1") !=
          std::string::npos);
  CHECK(message({.block_size = 0}).find("expected a block size from 1") != std::string::npos);

  const auto data = indexed_dataset(prefix, {.block_size = 9, .split = {1, 0, 0}, .vocabulary = 9});
  CHECK(data->vocabulary() == 9);  // as said, and nothing is read for it
  CHECK_THROWS_WITH_AS(sample_of(*data, Split::train, 0),
                       (prefix + ".bin: expected ids below the vocabulary's 9, got 9").c_str(),
                       FileError);
  CHECK_THROWS_AS(data->batch(Split::validation, 0, 1, Device::cpu()), ConfigError);
}

TEST_CASE(
    "Permutation reaches every index once, and moves an index to each place about equally often") {
  for (int64_t n : {1, 2, 3, 4, 5, 7, 16, 17, 100, 1023, 4096, 10007})
    for (uint64_t index : {0, 1}) {
      const Permutation order(7, "test", index, n);
      std::vector<bool> reached(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) {
        const int64_t place = order(i);
        REQUIRE((place >= 0 && place < n && !reached[static_cast<size_t>(place)]));
        reached[static_cast<size_t>(place)] = true;
      }
    }
  // A place of 12 goes anywhere with 1/12: of 24000 draws 2000 each, and 6 deviations are 257.
  std::vector<int> first(12), last(12);
  for (uint64_t index = 0; index < 24000; ++index) {
    const Permutation order(7, "test", index, 12);
    ++first[static_cast<size_t>(order(0))];
    ++last[static_cast<size_t>(order(11))];
  }
  for (int count : first) CHECK(std::abs(count - 2000) < 257);
  for (int count : last) CHECK(std::abs(count - 2000) < 257);
  const int64_t large = int64_t{1} << 62;
  CHECK(Permutation(7, "test", 0, large)(large - 1) < large);
}
