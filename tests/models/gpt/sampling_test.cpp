#include <cmath>
#include <set>

#include "tests/support/op_case.h"
#include "zerograd/models/gpt/generate.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3.0));
  return logits;
}

std::set<int32_t> drawn(const std::vector<float>& logits, const SamplingOptions& options) {
  std::set<int32_t> tokens;
  for (uint64_t draw = 0; draw < 1000; ++draw) tokens.insert(sample_token(logits, options, draw));
  return tokens;
}

void check_frequencies(const std::vector<float>& logits, const SamplingOptions& options,
                       const std::vector<double>& expected) {
  constexpr int draws = 20000;
  std::vector<int> counts(logits.size());
  for (uint64_t draw = 0; draw < draws; ++draw)
    ++counts[static_cast<size_t>(sample_token(logits, options, draw))];
  for (size_t i = 0; i < counts.size(); ++i) {
    CAPTURE(i);
    // Four standard deviations of a binomial proportion.
    const double bound = 4 * std::sqrt(expected[i] * (1 - expected[i]) / draws);
    CHECK(std::fabs(counts[i] / double{draws} - expected[i]) <= bound);
  }
}

}  // namespace

TEST_CASE("temperature 0 takes the first of the largest logits") {
  const std::vector<float> logits{1.0f, 4.0f, -infinity, 4.0f, 2.0f};
  for (uint64_t draw = 0; draw < 20; ++draw)
    CHECK(sample_token(logits, {.temperature = 0.0}, draw) == 1);
  for (int32_t largest = 0; largest < 40; ++largest) {
    std::vector<float> many(40, -2.0f);
    many[static_cast<size_t>(largest)] = many[39] = -1.0f;
    CHECK(sample_token(many, {.temperature = 0.0}, 0) == largest);
    many[static_cast<size_t>(largest)] = std::nanf("");
    CHECK_THROWS_AS(sample_token(many, {.temperature = 0.0}, 0), ConfigError);
  }
  CHECK(drawn(logits, {.top_k = 1}) == std::set<int32_t>{1});
  CHECK(drawn(logits, {.temperature = 1e-300}) == std::set<int32_t>{1, 3});
}

TEST_CASE(
    "sampled tokens have the frequencies of softmax of the logits divided by the temperature") {
  const std::vector<double> p{0.1, 0.4, 0.2, 0.3};
  check_frequencies(logits_of(p), {}, p);
  check_frequencies(logits_of(p), {.temperature = 0.5},
                    {0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3});
  check_frequencies(logits_of(p), {.top_k = 2}, {0.0, 0.4 / 0.7, 0.0, 0.3 / 0.7});
  check_frequencies(logits_of(p), {.top_p = 0.8}, {0.0, 0.4 / 0.9, 0.2 / 0.9, 0.3 / 0.9});
}

TEST_CASE("top_k keeps exactly the k largest logits, and of equal ones those with the lowest ids") {
  const std::vector<float> logits{0.5f, 1.0f, 0.5f, 0.9f, 0.5f};
  CHECK(drawn(logits, {.top_k = 2}) == std::set<int32_t>{1, 3});
  CHECK(drawn(logits, {.top_k = 3}) == std::set<int32_t>{0, 1, 3});
  CHECK(drawn(logits, {.top_k = 4}) == std::set<int32_t>{0, 1, 2, 3});
  CHECK(drawn(logits, {.top_k = 99}).size() == 5);
}

TEST_CASE("top_p keeps the smallest set of tokens whose probability reaches top_p") {
  const std::vector<float> logits = logits_of({0.125, 0.5, 0.125, 0.25});
  CHECK(drawn(logits, {.top_p = 1e-9}) == std::set<int32_t>{1});
  CHECK(drawn(logits, {.top_p = 0.49}) == std::set<int32_t>{1});
  CHECK(drawn(logits, {.top_p = 0.51}) == std::set<int32_t>{1, 3});
  CHECK(drawn(logits, {.top_p = 0.74}) == std::set<int32_t>{1, 3});
  CHECK(drawn(logits, {.top_p = 0.76}) == std::set<int32_t>{0, 1, 3});
  CHECK(drawn(logits, {.top_p = 1.0}).size() == 4);
  // top_k keeps two tokens; the more likely one then has probability 2/3.
  CHECK(drawn(logits, {.top_k = 2, .top_p = 0.6}) == std::set<int32_t>{1});
  CHECK(drawn(logits, {.top_k = 2, .top_p = 0.7}) == std::set<int32_t>{1, 3});
}

TEST_CASE("min_p drops the tokens with less than min_p times the largest probability") {
  const std::vector<float> logits = logits_of({0.125, 0.5, 0.125, 0.25});
  CHECK(drawn(logits, {.min_p = 0.24}).size() == 4);
  CHECK(drawn(logits, {.min_p = 0.26}) == std::set<int32_t>{1, 3});
  CHECK(drawn(logits, {.min_p = 0.51}) == std::set<int32_t>{1});
  CHECK(drawn(logits, {.min_p = 1.0}) == std::set<int32_t>{1});
  CHECK(drawn({0.5f, 1.0f, 1.0f}, {.min_p = 1.0}) == std::set<int32_t>{1, 2});
  // Half the temperature squares the shares: 1/4 and 1/16. Twice it gives their roots.
  CHECK(drawn(logits, {.temperature = 0.5, .min_p = 0.24}) == std::set<int32_t>{1, 3});
  CHECK(drawn(logits, {.temperature = 2.0, .min_p = 0.49}).size() == 4);
  CHECK(drawn(logits, {.top_k = 1, .min_p = 0.1}) == std::set<int32_t>{1});
  CHECK(drawn(logits, {.top_p = 0.9, .min_p = 0.26}) == std::set<int32_t>{1, 3});
  // 0.8 of all tokens is reached by three, of which one is below the share.
  CHECK(drawn(logits, {.top_p = 0.8, .min_p = 0.26}) == std::set<int32_t>{1, 3});
  CHECK(drawn({-infinity, 0.0f, -2000.0f}, {.min_p = 1e-300}) == std::set<int32_t>{1});
  const std::vector<double> p{0.1, 0.4, 0.2, 0.3};
  check_frequencies(logits_of(p), {.min_p = 0.49}, {0.0, 0.4 / 0.9, 0.2 / 0.9, 0.3 / 0.9});
  for (uint64_t draw = 0; draw < 100; ++draw)  // 0 changes no draw
    CHECK(sample_token(logits, {.min_p = 0.0}, draw) == sample_token(logits, {}, draw));
}

TEST_CASE("a drawn token is a function of logits, seed and draw number") {
  const std::vector<float> logits(50, 0.0f);
  int equal_seeds = 0, different_seeds = 0;
  for (uint64_t draw = 0; draw < 500; ++draw) {
    const int32_t token = sample_token(logits, {.seed = 1}, draw);
    equal_seeds += token == sample_token(logits, {.seed = 1}, draw);
    different_seeds += token == sample_token(logits, {.seed = 2}, draw);
  }
  CHECK(equal_seeds == 500);
  CHECK(different_seeds < 40);  // one in 50 is expected by chance
  CHECK(drawn(logits, {.seed = 1}).size() == 50);
}

TEST_CASE("tokens of probability 0 are never drawn") {
  const std::vector<float> logits{-infinity, 0.0f, -infinity, 0.1f, -2000.0f, -infinity};
  CHECK(drawn(logits, {}) == std::set<int32_t>{1, 3});
  CHECK(drawn(logits, {.top_k = 5}) == std::set<int32_t>{1, 3});
}

TEST_CASE("sampling refuses options out of range and unusable logits") {
  const std::vector<float> logits{0.0f, 1.0f};
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = -0.1}, SamplingOptions{.temperature = NAN},
        SamplingOptions{.temperature = INFINITY}, SamplingOptions{.top_k = -1},
        SamplingOptions{.top_p = 0.0}, SamplingOptions{.top_p = 1.1}, SamplingOptions{.top_p = NAN},
        SamplingOptions{.min_p = -0.1}, SamplingOptions{.min_p = 1.1},
        SamplingOptions{.min_p = NAN}})
    CHECK_THROWS_AS(sample_token(logits, options, 0), ConfigError);
  for (const std::vector<float>& unusable :
       {std::vector<float>{}, {0.0f, NAN}, {NAN, 0.0f}, {-infinity, -infinity}, {0.0f, infinity}})
    for (double temperature : {0.0, 1.0})
      CHECK_THROWS_AS(sample_token(unusable, {.temperature = temperature}, 0), ConfigError);
}
