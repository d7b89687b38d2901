#include "zerograd/models/seq2seq/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

namespace {

using Rows = std::vector<std::vector<int32_t>>;
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
constexpr float excluded = -1e9f;  // transformers adds it to scores of beams not to be chosen

template <class Got>
[[noreturn]] void refuse(const std::string& expected, const Got& got) {
  raise<ConfigError>("beam_search: expected {}, got {}", expected, got);
}

/// In tokens of the decoder, `start` included.
struct Lengths {
  size_t start, min, max;
};

Lengths lengths_of(const BeamOptions& options) {
  const auto start = static_cast<int64_t>(options.start.size());
  int64_t max = options.max_length.value_or(start + 20), min = options.min_length;
  if (options.max_new_tokens) max = start + *options.max_new_tokens;
  if (options.min_new_tokens) min = start + *options.min_new_tokens;
  return {options.start.size(), static_cast<size_t>(min), static_cast<size_t>(max)};
}

void check_ids(const char* field, std::span<const int32_t> ids, int64_t vocabulary) {
  for (int32_t id : ids)
    if (id < 0 || id >= vocabulary)
      refuse(fmt::format("{} in the vocabulary, [0, {})", field, vocabulary), id);
}

void check(int64_t vocabulary, const Rows& sources, const BeamOptions& options) {
  validate(options);
  if (sources.empty()) throw ConfigError("beam_search: expected at least one source, got none");
  const auto candidates = std::max<int64_t>(2, 1 + static_cast<int64_t>(options.eos.size()));
  if (options.beams > 1 && vocabulary < candidates)
    refuse(fmt::format("a vocabulary of at least {} tokens for beams > 1", candidates), vocabulary);
  check_ids("start", options.start, vocabulary);
  check_ids("eos", options.eos, vocabulary);
  check_ids("forced_eos", options.forced_eos, vocabulary);
  if (options.pad) check_ids("pad", std::span(&*options.pad, 1), vocabulary);
  if (options.forced_bos) check_ids("forced_bos", std::span(&*options.forced_bos, 1), vocabulary);
}

bool is_eos(const BeamOptions& options, int32_t token) {
  return std::ranges::find(options.eos, token) != options.eos.end();
}

/// Bans each token that, after `tokens`, would end an n-gram that `text` has.
void ban_repeats(std::span<float> scores, std::span<const int32_t> text,
                 std::span<const int32_t> tokens, int64_t ngram_size) {
  const auto n = static_cast<size_t>(ngram_size);
  if (n == 0 || tokens.size() + 1 < n) return;
  const std::span<const int32_t> prefix = tokens.last(n - 1);
  for (size_t end = n; end <= text.size(); ++end) {
    const int32_t last = text[end - 1];
    if (std::equal(prefix.begin(), prefix.end(), text.begin() + static_cast<int64_t>(end - n)) &&
        last >= 0 && static_cast<size_t>(last) < scores.size())
      scores[static_cast<size_t>(last)] = minus_infinity;
  }
}

void force(std::span<float> scores, std::span<const int32_t> ids) {
  std::ranges::fill(scores, minus_infinity);
  for (int32_t id : ids) scores[static_cast<size_t>(id)] = 0.0f;
}

void ban(std::span<float> scores, std::span<const int32_t> ids) {
  for (int32_t id : ids)
    if (id >= 0 && static_cast<size_t>(id) < scores.size())
      scores[static_cast<size_t>(id)] = minus_infinity;
}

void penalize_repeats(std::span<float> scores, std::span<const int32_t> tokens, float penalty) {
  const std::set<int32_t> distinct(tokens.begin(), tokens.end());
  for (int32_t id : distinct) {
    float& score = scores[static_cast<size_t>(id)];
    score = score < 0.0f ? score * penalty : score / penalty;
  }
}

}  // namespace

void process_logits(std::span<float> scores, std::span<const int32_t> tokens,
                    std::span<const int32_t> source, const BeamOptions& options) {
  const Lengths lengths = lengths_of(options);
  if (options.repetition_penalty != 1.0)
    penalize_repeats(scores, tokens, static_cast<float>(options.repetition_penalty));
  ban_repeats(scores, tokens, tokens, options.no_repeat_ngram_size);
  ban_repeats(scores, source, tokens, options.encoder_no_repeat_ngram_size);
  if (tokens.size() < lengths.min) ban(scores, options.eos);
  if (options.forced_bos && tokens.size() == 1) force(scores, std::span(&*options.forced_bos, 1));
  if (!options.forced_eos.empty() && tokens.size() + 1 == lengths.max)
    force(scores, options.forced_eos);
  ban(scores, options.suppressed);
  if (tokens.size() == lengths.start + (lengths.start == 1 && options.forced_bos ? 1 : 0))
    ban(scores, options.begin_suppressed);
}

namespace {

/// In place, in f32 with the operations of torch.log_softmax except for the sum.
void to_log_probabilities(std::span<float> row) {
  const float largest = *std::ranges::max_element(row);
  double sum = 0.0;
  for (float logit : row) sum += portable::exp(double{logit - largest});
  const auto log_sum = static_cast<float>(portable::log(sum));
  for (float& logit : row) logit = (logit - largest) - log_sum;
}

/// Calls the decoder and checks what it returns.
class StepDecoder {
 public:
  StepDecoder(const NextLogits& next_logits, int64_t vocabulary)
      : next_logits_(next_logits), vocabulary_(static_cast<size_t>(vocabulary)) {}

  /// `rows.size()` rows of logits; row(i) is the i-th.
  void step(const std::vector<int32_t>& tokens, const std::vector<int64_t>& from_rows,
            bool may_reorder) {
    logits_ = next_logits_({tokens, from_rows, may_reorder, position_});
    position_ += static_cast<int64_t>(tokens.size() / from_rows.size());
    if (logits_.size() != from_rows.size() * vocabulary_)
      refuse(fmt::format("logits [{}, {}]", from_rows.size(), vocabulary_), logits_.size());
    for (size_t i = 0; i < from_rows.size(); ++i) {
      float largest = minus_infinity;
      for (float logit : row(i)) largest = logit == logit ? std::max(largest, logit) : NAN;
      if (!std::isfinite(largest))
        raise<ConfigError>(
            "beam_search: expected logits with a finite maximum, got {} in row {}; the "
            "model's weights are not usable",
            largest, i);
    }
  }
  std::span<float> row(size_t i) {
    return std::span(logits_).subspan(i * vocabulary_, vocabulary_);
  }

 private:
  const NextLogits& next_logits_;
  size_t vocabulary_;
  std::vector<float> logits_;
  int64_t position_ = 0;
};

/// `start` once for each source.
void first_step(StepDecoder& decoder, size_t sources, const BeamOptions& options) {
  std::vector<int32_t> tokens;
  std::vector<int64_t> from_rows;
  for (size_t source = 0; source < sources; ++source) {
    tokens.insert(tokens.end(), options.start.begin(), options.start.end());
    from_rows.push_back(static_cast<int64_t>(source));
  }
  decoder.step(tokens, from_rows, /*may_reorder=*/false);
}

int32_t next_token(std::span<const float> scores, const BeamOptions& options, size_t row,
                   size_t index) {
  const auto largest = std::ranges::max_element(scores);
  if (!options.sampling) return static_cast<int32_t>(largest - scores.begin());
  if (!std::isfinite(*largest))
    raise<ConfigError>(
        "beam_search: the options ban every token at position {}; a sample needs one", index);
  return sample_token(scores, *options.sampling, uint64_t{row} << 32 | uint64_t{index});
}

/// GenerationMixin._sample: greedy search or sampling.
Rows search_one_beam(StepDecoder& decoder, const Rows& sources, const BeamOptions& options) {
  const Lengths lengths = lengths_of(options);
  Rows rows(sources.size(), options.start);
  std::vector<bool> finished(rows.size(), false);
  std::vector<int64_t> from_rows(rows.size());
  for (size_t row = 0; row < rows.size(); ++row) from_rows[row] = static_cast<int64_t>(row);
  first_step(decoder, sources.size(), options);
  for (size_t index = 0;; ++index) {
    std::vector<int32_t> tokens;
    for (size_t row = 0; row < rows.size(); ++row) {
      process_logits(decoder.row(row), rows[row], sources[row], options);
      tokens.push_back(finished[row] ? options.pad.value_or(options.eos[0])
                                     : next_token(decoder.row(row), options, row, index));
      rows[row].push_back(tokens.back());
      if (is_eos(options, tokens.back())) finished[row] = true;
    }
    const bool all = std::ranges::find(finished, false) == finished.end();
    if (all || rows[0].size() >= lengths.max) return rows;
    decoder.step(tokens, from_rows, /*may_reorder=*/false);
  }
}

/// The indices of the k largest scores, the largest first. Equal scores are ordered by the calls
/// that torch.topk makes on a CPU. Beams that are excluded often have equal scores.
std::vector<size_t> top_k(std::span<const float> scores, size_t k) {
  std::vector<std::pair<float, size_t>> queue;
  queue.reserve(scores.size());
  for (float score : scores) queue.emplace_back(score, queue.size());
  const auto larger = [](const auto& a, const auto& b) { return a.first > b.first; };
  const auto kth = queue.begin() + static_cast<int64_t>(k);
  if (k * 64 <= queue.size()) {
    std::partial_sort(queue.begin(), kth, queue.end(), larger);
  } else {
    std::nth_element(queue.begin(), kth - 1, queue.end(), larger);
    std::sort(queue.begin(), kth - 1, larger);
  }
  std::vector<size_t> indices;
  for (size_t i = 0; i < k; ++i) indices.push_back(queue[i].second);
  return indices;
}

struct Beam {
  std::vector<int32_t> tokens;
  float score;        ///< running: sum of log-probabilities; finished: with the length penalty
  size_t from;        ///< running: the beam of the step before that it continues
  bool ends = false;  ///< its last token is an eos, or it has max_length tokens
};

std::vector<Beam> chosen(const std::vector<Beam>& beams, size_t k) {
  std::vector<float> scores;
  scores.reserve(beams.size());
  for (const Beam& beam : beams) scores.push_back(beam.score);
  std::vector<Beam> best;
  for (size_t index : top_k(scores, k)) best.push_back(beams[index]);
  return best;
}

/// GenerationMixin._beam_search for one source. The search of a batch ends for all sources at once.
class BeamSearch {
 public:
  explicit BeamSearch(const BeamOptions& options)
      : options_(options),
        lengths_(lengths_of(options)),
        beams_(static_cast<size_t>(options.beams)) {
    running_.assign(beams_, Beam{.tokens = options.start, .score = excluded, .from = 0});
    finished_ = running_;
    running_[0].score = 0.0f;  // the beams are equal, so the first step continues one of them
  }

  const std::vector<Beam>& running() const { return running_; }
  const std::vector<Beam>& finished() const { return finished_; }

  bool full() const {
    return std::ranges::all_of(finished_, [](const Beam& b) { return b.ends; });
  }
  /// A running beam can still become better than a finished one.
  bool improvable() const { return improvable_; }
  /// All continuations of the last step have ended.
  bool exhausted() const { return exhausted_; }

  /// `scores` [beams, V]: log-probability of each continuation plus the score of its beam.
  void advance(std::span<const float> scores) {
    const std::vector<Beam> candidates = continuations(scores);
    exhausted_ = std::ranges::all_of(candidates, [](const Beam& beam) { return beam.ends; });
    std::vector<Beam> open = candidates;
    for (Beam& beam : open)
      if (beam.ends) beam.score += excluded;
    running_ = chosen(open, beams_);
    finish(candidates);
    improvable_ = improvable_ && can_improve();
  }

 private:
  /// The best continuations, as many that `beams` of them do not end, if V is large enough.
  std::vector<Beam> continuations(std::span<const float> scores) const {
    const size_t count = std::max<size_t>(2, 1 + options_.eos.size()) * beams_;
    const size_t V = scores.size() / beams_;
    std::vector<Beam> candidates;
    for (size_t index : top_k(scores, count)) {
      const size_t from = index / V;
      const auto token = static_cast<int32_t>(index % V);
      Beam beam{.tokens = running_[from].tokens, .score = scores[index], .from = from};
      beam.tokens.push_back(token);
      beam.ends = is_eos(options_, token) || beam.tokens.size() >= lengths_.max;
      candidates.push_back(std::move(beam));
    }
    return candidates;
  }

  /// Adds the first `beams` of the candidates to the finished beams, if they end and are better.
  void finish(const std::vector<Beam>& candidates) {
    const bool closed = full() && options_.early_stopping == EarlyStopping::yes;
    const float divisor = penalty(candidates[0].tokens.size());
    for (size_t i = 0; i < candidates.size(); ++i) {
      Beam beam = candidates[i];
      beam.ends = beam.ends && i < beams_;
      beam.score /= divisor;
      if (closed) beam.score += excluded;
      if (!improvable_) beam.score += excluded;
      if (!beam.ends) beam.score += excluded;
      finished_.push_back(std::move(beam));
    }
    finished_ = chosen(finished_, beams_);
  }

  /// _check_early_stop_heuristic
  bool can_improve() const {
    const bool longest =
        options_.early_stopping == EarlyStopping::never && options_.length_penalty > 0.0;
    const float best =
        running_[0].score / penalty(longest ? lengths_.max : running_[0].tokens.size());
    float worst = finished_[0].score;
    for (const Beam& beam : finished_) worst = std::min(worst, beam.score);
    return std::ranges::any_of(
        finished_, [&](const Beam& beam) { return best > (beam.ends ? worst : excluded); });
  }

  float penalty(size_t length) const {
    return static_cast<float>(
        portable::pow(static_cast<double>(length - lengths_.start), options_.length_penalty));
  }

  const BeamOptions& options_;
  Lengths lengths_;
  size_t beams_;
  std::vector<Beam> running_, finished_;
  bool improvable_ = true, exhausted_ = false;
};

/// The conditions under which _beam_search goes on.
bool unfinished(const std::vector<BeamSearch>& searches, const BeamOptions& options) {
  const auto every = [&](auto condition) { return std::ranges::all_of(searches, condition); };
  if (every([](const BeamSearch& search) { return !search.improvable(); })) return false;
  if (every([](const BeamSearch& search) { return search.exhausted(); })) return false;
  return options.early_stopping != EarlyStopping::yes ||
         !every([](const BeamSearch& search) { return search.full(); });
}

/// The best finished beams of each source, padded to the longest.
Generated results(const std::vector<BeamSearch>& searches, const BeamOptions& options) {
  Generated generated;
  size_t longest = 0;
  for (const BeamSearch& search : searches)
    for (size_t i = 0; i < static_cast<size_t>(options.return_sequences); ++i) {
      const Beam& beam = search.finished()[i];
      generated.rows.push_back(beam.tokens);
      generated.scores.push_back(beam.score);
      longest = std::max(longest, beam.tokens.size());
    }
  // transformers' `pad_token_id or eos_token_id[0]` takes the eos if pad is 0.
  const int32_t pad = options.pad.value_or(0);
  const int32_t fill = options.eos.empty() ? -1 : pad != 0 ? pad : options.eos[0];
  for (std::vector<int32_t>& row : generated.rows) row.resize(longest, fill);
  return generated;
}

Generated search_beams(StepDecoder& decoder, int64_t vocabulary, const Rows& sources,
                       const BeamOptions& options) {
  const auto beams = static_cast<size_t>(options.beams), V = static_cast<size_t>(vocabulary);
  std::vector<BeamSearch> searches(sources.size(), BeamSearch(options));
  first_step(decoder, sources.size(), options);
  std::vector<float> scores(beams * V);
  for (bool first = true;; first = false) {
    std::vector<int32_t> tokens;
    std::vector<int64_t> from_rows;
    for (size_t source = 0; source < sources.size(); ++source) {
      BeamSearch& search = searches[source];
      // The first step has one row for all beams of a source.
      const auto row_of = [&](size_t beam) { return first ? source : source * beams + beam; };
      for (size_t beam = 0; beam < beams; ++beam) {
        const Beam& running = search.running()[beam];
        const std::span<float> row = decoder.row(row_of(beam));
        if (!first || beam == 0) {
          to_log_probabilities(row);
          process_logits(row, running.tokens, sources[source], options);
        }
        for (size_t token = 0; token < V; ++token)
          scores[beam * V + token] = row[token] + running.score;
      }
      search.advance(scores);
      for (const Beam& beam : search.running()) {
        tokens.push_back(beam.tokens.back());
        from_rows.push_back(static_cast<int64_t>(row_of(beam.from)));
      }
    }
    if (!unfinished(searches, options)) return results(searches, options);
    decoder.step(tokens, from_rows, /*may_reorder=*/true);
  }
}

}  // namespace

void validate(const BeamOptions& options) {
  if (options.beams < 1 || options.beams > largest_beams)
    refuse(fmt::format("beams from 1 to {}", largest_beams), options.beams);
  if (options.return_sequences < 1 || options.return_sequences > options.beams)
    refuse(fmt::format("return_sequences from 1 to beams, {}", options.beams),
           options.return_sequences);
  if (options.start.empty())
    throw ConfigError("beam_search: expected start with the decoder's first token, got none");
  for (const auto& [field, value] :
       {std::pair("min_length", options.min_length),
        {"min_new_tokens", options.min_new_tokens.value_or(0)},
        {"no_repeat_ngram_size", options.no_repeat_ngram_size},
        {"encoder_no_repeat_ngram_size", options.encoder_no_repeat_ngram_size}})
    if (value < 0) refuse(fmt::format("{} from 0", field), value);
  if (!(options.repetition_penalty > 0.0))
    refuse("repetition_penalty above 0", options.repetition_penalty);
  const auto start = static_cast<int64_t>(options.start.size());
  if (options.max_new_tokens && *options.max_new_tokens < 1)
    refuse("max_new_tokens from 1", *options.max_new_tokens);
  if (!options.max_new_tokens && options.max_length && *options.max_length <= start)
    refuse(fmt::format("max_length above the {} tokens of start", start), *options.max_length);
  if (!std::isfinite(options.length_penalty))
    refuse("a finite length_penalty", options.length_penalty);
  if (!options.sampling) return;
  if (options.beams > 1) refuse("beams of 1 for sampling", options.beams);
  validate(*options.sampling);
}

Generated beam_search(const NextLogits& next_logits, int64_t vocabulary, const Rows& sources,
                      const BeamOptions& options) {
  check(vocabulary, sources, options);
  StepDecoder decoder(next_logits, vocabulary);
  if (options.beams == 1) return {search_one_beam(decoder, sources, options), {}};
  return search_beams(decoder, vocabulary, sources, options);
}

}  // namespace zg::models
