#include "zerograd/models/gpt/generate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "zerograd/models/data/random_stream.h"
#include "zerograd/models/gpt/gpt_layers.h"
#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/visit_type.h"

namespace zg::models {

Tensor GPT::next_logits(Tape& tape, const Tensor& ids, KeyValueCache& cache) const {
  if (tape.mode() != TapeMode::inference)
    throw TapeError("next_logits: expected a tape in inference mode; a cache has no gradients");
  if (ids.shape().rank() != 2 || ids.numel() == 0)
    throw ShapeError("next_logits: expected ids [B, T], got " + ids.shape().str());
  const int64_t B = ids.extent(0), T = ids.extent(1);
  if (cache.length() + T > cache.capacity())
    raise<ConfigError>(
        "next_logits: the cache holds {} of {} positions, got {} more; clear it and "
        "begin with a later window",
        cache.length(), cache.capacity(), T);
  if (cache.batch() > 0 && cache.batch() != B)
    raise<ShapeError>("next_logits: expected {} rows as in the cache, got {}", cache.batch(), B);

  const nn::Pass whole{.cache = &cache, .all_tokens = true};
  const Tape::With outside(tape, whole);
  Var x = begin_stage(tape, *layers_, ids, cache.length());
  const Tape::With pass(tape, with_tables(whole, *layers_, x, cache.length() + T));
  for (const nn::UnitOf<Block>& block : layers_->blocks) x = block(nn::Residual{x}).sum();
  cache.advance(T);

  const Shape logits{B, config().vocabulary};
  return end_stage(tape, *layers_, x, logits, layers_->part.activations, [&](const Var& end) {
    HeadUse use(tape, *layers_);
    const Var last = layers_->norm_f(slice(end, 1, T - 1, T));
    return layers_->lm_head.logits(last).value().view(logits);
  });
}

namespace {

int32_t most_likely(std::span<const float> logits) {
  // Sixteen maxima, which compilers compute with vectors. A comparison with NaN is false.
  constexpr size_t lanes = 16;
  std::array<float, lanes> maxima;
  std::array<int32_t, lanes> nans = {};
  maxima.fill(-std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < logits.size(); i += lanes)
    for (size_t j = 0, n = std::min(lanes, logits.size() - i); j < n; ++j) {
      const float l = logits[i + j];
      maxima[j] = l > maxima[j] ? l : maxima[j];
      nans[j] |= l != l;
    }
  const float largest = std::ranges::max(maxima);
  if (std::ranges::max(nans) != 0 || !std::isfinite(largest))
    throw ConfigError(
        "sample_token: expected logits with a finite maximum, got NaN, an infinity "
        "or none; the model's weights are not usable");
  return static_cast<int32_t>(std::ranges::find(logits, largest) - logits.begin());
}

/// How many of the largest weights have a sum of at least `top_p` times the total. `weights` must
/// be sorted, the largest first.
size_t nucleus(std::span<const double> weights, double top_p) {
  const double wanted = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0.0;
  size_t count = 0;
  while (count < weights.size() && sum < wanted) sum += weights[count++];
  return std::max<size_t>(count, 1);
}

using Rows = std::vector<std::vector<int32_t>>;

void check(const Rows& prompts, int64_t length) {
  if (length < 0) raise<ConfigError>("generate: expected a length from 0, got {}", length);
  if (prompts.empty()) throw ConfigError("generate: expected at least one prompt, got none");
  const size_t tokens = prompts[0].size();
  for (const std::vector<int32_t>& prompt : prompts)
    if (prompt.empty() || prompt.size() != tokens)
      raise<ConfigError>(
          "generate: expected prompts of one length, at least 1, got {} and {} tokens; "
          "generate them one at a time",
          tokens, prompt.size());
}

/// The last `count` tokens of every row, [B, count].
Tensor last_tokens(const Rows& rows, int64_t count, const Device& device) {
  std::vector<int32_t> ids;
  for (const std::vector<int32_t>& row : rows) ids.insert(ids.end(), row.end() - count, row.end());
  return Tensor::from(ids, {static_cast<int64_t>(rows.size()), count}, device);
}

/// The next token of a row of [B, V], whose tokens so far are given. One row is read at a time, as
/// a vocabulary can be large. On a meta device, which has no logits, the token is 0.
int32_t draw_token(const Tensor& logits, int64_t row, const std::vector<int32_t>& tokens,
                   const SamplingOptions& options, uint64_t index) {
  if (logits.device().type() == Device::Type::meta) return 0;
  const int64_t V = logits.extent(1);
  std::vector<float> values(static_cast<size_t>(V));
  visit_type(logits.dtype(), [&]<class T>() {
    std::ranges::transform(logits.flat(row * V, V).to_host<T>(), values.begin(),
                           [](T value) { return static_cast<float>(value); });
  });
  if (options.process) options.process(values, tokens);
  return sample_token(values, options, static_cast<uint64_t>(row) << 32 | index);
}

}  // namespace

void validate(const SamplingOptions& options) {
  const auto refuse = [](const char* expected, double got) {
    raise<ConfigError>("sampling: expected {}, got {:f}", expected, got);
  };
  if (!(options.temperature >= 0.0 && std::isfinite(options.temperature)))
    refuse("a finite temperature from 0", options.temperature);
  if (options.top_k < 0) refuse("top_k from 0", static_cast<double>(options.top_k));
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) refuse("top_p in (0, 1]", options.top_p);
  if (!(options.min_p >= 0.0 && options.min_p <= 1.0)) refuse("min_p in [0, 1]", options.min_p);
}

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint64_t draw) {
  validate(options);
  const int32_t best = most_likely(logits);
  if (options.temperature == 0.0) return best;

  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  if (options.top_k > 0 || options.top_p < 1.0) {
    std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
    if (options.top_k > 0) ids.resize(std::min(ids.size(), static_cast<size_t>(options.top_k)));
  }
  std::vector<double> weights;
  weights.reserve(ids.size());
  for (int32_t id : ids)
    weights.push_back(
        portable::exp((double{logit(id)} - double{logit(best)}) / options.temperature));
  if (options.top_p < 1.0) weights.resize(nucleus(weights, options.top_p));
  for (double& weight : weights)  // the largest is 1
    if (weight < options.min_p) weight = 0.0;

  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double left = RandomStream(options.seed, "sample_token", draw).uniform() * sum;
  size_t chosen = 0;
  while (chosen + 1 < weights.size() && left >= weights[chosen]) left -= weights[chosen++];
  // Because of rounding the loop can end after the last token with a probability above 0.
  while (weights[chosen] == 0.0) --chosen;
  return ids[chosen];
}

Rows generate(const GPT& model, const std::function<Tape()>& make_tape, const Rows& prompts,
              int64_t length, const SamplingOptions& options,
              const std::function<void(int32_t)>& on_token) {
  check(prompts, length);
  validate(options);
  Rows rows = prompts;
  const int64_t tokens = static_cast<int64_t>(rows[0].size()) + length;
  const GPTConfig& config = model.config();
  KeyValueCache cache(config,
                      std::min(tokens, std::max(config.block_size, longest_context(config))));
  int64_t fresh = static_cast<int64_t>(rows[0].size());  // tokens that the cache has not seen
  const auto has_ended = [&](const std::vector<int32_t>& row, int64_t drawn) {
    return drawn > 0 && std::ranges::find(options.ends, row.back()) != options.ends.end();
  };
  // With longrope the frequencies of every position change where the text becomes longer than this.
  const int64_t border = config.rope.scaling == RopeScaling::longrope
                             ? config.rope.original_positions
                             : std::numeric_limits<int64_t>::max();
  for (int64_t i = 0; i < length; ++i) {
    const int64_t seen = cache.length();
    if (seen + fresh > cache.capacity() || (seen <= border && seen + fresh > border)) {
      // Positions are absolute: when the window moves, the position of every token in it changes.
      cache.clear();
      fresh = std::min(static_cast<int64_t>(rows[0].size()), cache.capacity());
    }
    Tape tape = make_tape();
    const Tensor ids = last_tokens(rows, fresh, tape.device());
    const Tensor logits = model.next_logits(tape, ids, cache);
    const bool first_goes_on = !has_ended(rows[0], i);
    for (size_t row = 0; row < rows.size(); ++row)
      rows[row].push_back(has_ended(rows[row], i)
                              ? rows[row].back()
                              : draw_token(logits, static_cast<int64_t>(row), rows[row], options,
                                           static_cast<uint64_t>(i)));
    if (on_token && first_goes_on) on_token(rows[0].back());
    fresh = 1;
    if (std::ranges::all_of(rows, [&](const auto& row) { return has_ended(row, i + 1); })) break;
  }
  return rows;
}

}  // namespace zg::models
