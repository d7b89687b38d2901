#include "zerograd/models/data/pair_data.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "zerograd/models/data/indexed_dataset.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

namespace zg::models {
namespace {

PairDataset::Lengths longer(PairDataset::Lengths lengths, const TokenPair& pair) {
  return {std::max(lengths.source, std::ssize(pair.source)),
          std::max(lengths.target, std::ssize(pair.target))};
}

}  // namespace

std::vector<TokenPair> read_pairs(
    const std::string& path,
    const std::function<std::vector<int32_t>(const std::string& text, int64_t limit)>& encode,
    const PairFileOptions& options) {
  for (const auto& [field, limit] :
       {std::pair("max_source", options.max_source), std::pair("max_target", options.max_target)})
    if (limit < 1) raise<ConfigError>("pairs: {} is {}; expected 1 or more", field, limit);
  std::vector<TokenPair> pairs;
  for_each_json_line(path, [&](const JsonNode& line, const std::string& place) {
    const auto tokens_of = [&](const std::string& prefix, const std::string& key, int64_t limit) {
      std::vector<int32_t> tokens = encode(prefix + line.at(key).text(), limit);
      if (tokens.empty())
        raise<ConfigError>("{}: {} has no tokens; expected one or more", place, key);
      if (std::ssize(tokens) > limit) tokens.resize(static_cast<size_t>(limit));
      return tokens;
    };
    std::vector<int32_t> source =
        tokens_of(options.source_prefix, options.source_key, options.max_source);
    pairs.push_back({std::move(source), tokens_of("", options.target_key, options.max_target)});
  });
  if (pairs.empty())
    raise<ConfigError>(
        "{}: no pairs; expected a line such as {{\"{}\": \"Hi\", \"{}\": \"Hello\"}}", path,
        options.source_key, options.target_key);
  return pairs;
}

PairDataset::PairDataset(std::vector<TokenPair> pairs, const PairOptions& options)
    : pairs_(std::move(pairs)), options_(options) {
  if (!(options.validation_fraction >= 0.0 && options.validation_fraction <= 1.0))
    raise<ConfigError>("pairs: validation_fraction is {}; expected a number from 0 to 1",
                       options.validation_fraction);
  const auto count = std::ssize(pairs_);
  training_ = count - std::llround(static_cast<double>(count) * options.validation_fraction);
  if (training_ < 1 && options.validation_fraction < 1.0)
    raise<ConfigError>(
        "pairs: {} pairs, validation_fraction {}: none is left to train on; expected one or more",
        count, options.validation_fraction);
}

int64_t PairDataset::epoch_samples(Split split) const {
  return split == Split::train ? training_ : std::ssize(pairs_) - training_;
}

const TokenPair& PairDataset::sample(Split split, int64_t index) const {
  const int64_t count = epoch_samples(split);
  if (count == 0)
    throw ConfigError(
        split == Split::train
            ? "pairs: there is no training split; expected a validation_fraction below 1"
            : "pairs: there is no validation split; expected a validation_fraction above 0");
  int64_t place = index % count;
  if (split == Split::train && options_.order == Order::random)
    place = Permutation(options_.seed, "pairs", static_cast<uint64_t>(index / count), count)(place);
  return pairs_[static_cast<size_t>(split == Split::train ? place : training_ + place)];
}

std::vector<TokenPair> PairDataset::samples(Split split, int64_t first, int64_t count) const {
  std::vector<TokenPair> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(sample(split, first + i));
  return all;
}

PairDataset::Lengths PairDataset::longest(Split split, int64_t first, int64_t count) const {
  Lengths lengths;
  for (int64_t i = 0; i < count; ++i) lengths = longer(lengths, sample(split, first + i));
  return lengths;
}

PairDataset::Lengths PairDataset::longest() const {
  Lengths lengths;
  for (const TokenPair& pair : pairs_) lengths = longer(lengths, pair);
  return lengths;
}

int64_t PairDataset::vocabulary() const {
  int32_t largest = 0;
  for (const TokenPair& pair : pairs_)
    for (const std::vector<int32_t>* tokens : {&pair.source, &pair.target})
      if (!tokens->empty())
        largest = std::max(largest, *std::max_element(tokens->begin(), tokens->end()));
  return int64_t{largest} + 1;
}

}  // namespace zg::models
