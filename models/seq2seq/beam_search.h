#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "zerograd/models/gpt/generate.h"

namespace zg::models {

/// When the search of a source ends before max_length. It never ends before `beams` sequences are
/// finished.
enum class EarlyStopping {
  no,    ///< when the best running beam, scored at its length, is not above the worst finished one
  yes,   ///< as soon as `beams` sequences are finished
  never  ///< as `no`, but if length_penalty > 0 the running beam is scored at max_length
};

/// Limit of BeamOptions::beams: each has rows of logits and of the cache.
inline constexpr int64_t largest_beams = 1024;

/// Options of generation. Defaults and meaning are those of GenerationConfig in transformers 5, and
/// so are the names, without "num_" and "_token_id". Lengths are in tokens of the decoder and
/// include `start`, except those of new tokens.
struct BeamOptions {
  int64_t beams = 1;             ///< 1: greedy search, or samples if `sampling` is set
  int64_t return_sequences = 1;  ///< for each source, the best first; at most `beams`
  std::vector<int32_t> start;    ///< first tokens of each row: decoder_start_token_id, maybe more
  std::vector<int32_t> eos;      ///< a sequence ends with any of these
  std::optional<int32_t> pad;    ///< follows a finished sequence; if not set, the first eos

  std::optional<int64_t> max_length;      ///< if neither maximum is set, 20 new tokens
  std::optional<int64_t> max_new_tokens;  ///< replaces max_length
  int64_t min_length = 0;                 ///< no eos is generated after fewer tokens
  std::optional<int64_t> min_new_tokens;  ///< replaces min_length

  /// A finished sequence is scored by the sum of its log-probabilities / new tokens^length_penalty.
  double length_penalty = 1.0;
  EarlyStopping early_stopping = EarlyStopping::no;
  int64_t no_repeat_ngram_size = 0;          ///< no n-gram is generated twice; 0: off
  int64_t encoder_no_repeat_ngram_size = 0;  ///< no n-gram of the source is generated; 0: off
  /// Divides the logit, or multiplies a negative one, of each token that the sequence has; 1: off.
  double repetition_penalty = 1.0;
  std::vector<int32_t> suppressed, begin_suppressed;  ///< never generated; not as the first one
  std::optional<int32_t> forced_bos;                  ///< the second token, if `start` is one token
  std::vector<int32_t> forced_eos;  ///< the last token at max_length is one of these

  std::optional<SamplingOptions> sampling;  ///< do_sample, for beams == 1
};
/// Throws ConfigError naming the field, the expected value and the actual one. A min_length above
/// max_length is not an error: then no sequence has an eos, except a forced one.
ZG_API void validate(const BeamOptions& options);

/// Applies those options that change logits, as the logits processors of transformers and in their
/// order. `scores` [V] are of the token after `tokens`, which begin with `start`.
ZG_API void process_logits(std::span<float> scores, std::span<const int32_t> tokens,
                           std::span<const int32_t> source, const BeamOptions& options);

/// The input of one call of a decoder.
struct BeamStep {
  std::span<const int32_t> tokens;  ///< [rows, T]: `start` in the first call, then T = 1
  /// [rows] Row r continues row from_rows[r] of the previous call: its caches are those of that
  /// row. In the first call, which has a row for each source, from_rows[r] is r, the source. The
  /// second call has `beams` rows for each source, so a cache gets more rows there.
  std::span<const int64_t> from_rows;
  /// False: from_rows is 0, 1, ... for any logits, as in greedy search, so caches stay as they are.
  bool may_reorder;
  int64_t position;  ///< in the sequence, from 0, of the first of the T tokens
};
/// Returns the logits [rows, V] that follow the last token of each row.
using NextLogits = std::function<std::vector<float>(const BeamStep&)>;

struct Generated {
  /// [sources * return_sequences][T] `start` and the generated tokens, padded to the longest.
  std::vector<std::vector<int32_t>> rows;
  /// [sources * return_sequences] the score that length_penalty describes; empty if beams is 1.
  std::vector<float> scores;
};

/// Generates a sequence for each of the `sources` by greedy search, sampling or beam search as
/// GenerationMixin.generate of transformers 5.24 does, and with its tokens for equal logits. These
/// details follow from that:
/// - Scores are f32. Only the sum in log_softmax is more exact than PyTorch's, so beams whose
///   scores differ by rounding alone can be exchanged.
/// - Equal scores have the order of torch.topk on a CPU, built with libstdc++.
/// - Beam search fills finished rows with the first eos if `pad` is 0. Greedy search does not.
/// - The n-grams of a source include its padding, which depends on the batch. Leave it out of
///   `sources`, which this function reads for n-grams alone, if rows shall not depend on others.
///
/// `vocabulary` is V. Throws ConfigError for invalid options, token ids outside the vocabulary, a
/// vocabulary that is too small for the beams (V must exceed the number of eos ids, and be at
/// least 2), and logits of another size or without a finite maximum.
ZG_API Generated beam_search(const NextLogits& next_logits, int64_t vocabulary,
                             const std::vector<std::vector<int32_t>>& sources,
                             const BeamOptions& options);

}  // namespace zg::models
