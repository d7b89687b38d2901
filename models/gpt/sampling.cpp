#include <algorithm>
#include <cmath>
#include <numeric>

#include "zerograd/models/data/random_stream.h"
#include "zerograd/models/gpt/generate.h"
#include "zerograd/runtime/error.h"

namespace zg::models {
namespace {

int32_t most_likely(std::span<const float> logits) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  const bool has_nan = std::any_of(logits.begin(), logits.end(), [](float l) { return l != l; });
  if (logits.empty() || has_nan || !std::isfinite(*largest))
    throw ConfigError(
        "sample_token: expected logits with a finite maximum, got NaN, an infinity "
        "or none; the model's weights are not usable");
  return static_cast<int32_t>(largest - logits.begin());
}

/// How many of the falling `weights` reach the share `top_p` of their sum.
size_t nucleus(std::span<const double> weights, double top_p) {
  const double wanted = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0.0;
  size_t count = 0;
  while (count < weights.size() && sum < wanted) sum += weights[count++];
  return std::max<size_t>(count, 1);
}

}  // namespace

void validate(const SamplingOptions& options) {
  const auto refuse = [](const char* expected, double got) {
    throw ConfigError(std::string("sampling: expected ") + expected + ", got " +
                      std::to_string(got));
  };
  if (!(options.temperature >= 0.0 && std::isfinite(options.temperature)))
    refuse("a finite temperature from 0", options.temperature);
  if (options.top_k < 0) refuse("top_k from 0", static_cast<double>(options.top_k));
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) refuse("top_p in (0, 1]", options.top_p);
}

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint64_t draw) {
  validate(options);
  const int32_t best = most_likely(logits);
  if (options.temperature == 0.0) return best;

  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  if (options.top_k > 0 || options.top_p < 1.0) {
    std::stable_sort(ids.begin(), ids.end(),
                     [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
    if (options.top_k > 0) ids.resize(std::min(ids.size(), static_cast<size_t>(options.top_k)));
  }
  std::vector<double> weights;
  for (int32_t id : ids)
    weights.push_back(std::exp((double{logit(id)} - double{logit(best)}) / options.temperature));
  if (options.top_p < 1.0) weights.resize(nucleus(weights, options.top_p));

  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double left = RandomStream(options.seed, "sample_token", draw).uniform() * sum;
  size_t chosen = 0;
  while (chosen + 1 < weights.size() && left >= weights[chosen]) left -= weights[chosen++];
  // Rounding may walk past the last likely token, onto one of probability 0.
  while (weights[chosen] == 0.0) --chosen;
  return ids[chosen];
}

}  // namespace zg::models
