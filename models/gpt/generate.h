#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "zerograd/models/gpt/gpt.h"

namespace zg::models {

struct SamplingOptions {
  double temperature = 1.0;  ///< divides the logits; 0: greedy
  int64_t top_k = 0;         ///< keep the k most likely; 0: all
  double top_p = 1.0;        ///< then keep the smallest set with at least this total probability
  /// Then drop tokens whose probability is below min_p times the largest one, which stays; 0: none.
  /// As temperature has been applied before, this is min_p of transformers and llama.cpp.
  double min_p = 0.0;
  uint64_t seed = 3407;
  /// generate() ends a row that draws one of these. The row is filled with that token while others
  /// go on; when all rows have ended, they are returned, shorter than asked for.
  std::vector<int32_t> ends = {};
  /// Changes the logits [V] of a row before a token is drawn; `tokens`: the row so far. generate()
  /// calls it, for example with process_logits() of models/seq2seq/beam_search.h.
  std::function<void(std::span<float> logits, std::span<const int32_t> tokens)> process = {};
};
/// Throws ConfigError naming the field unless temperature is finite and at least 0, top_k at least
/// 0, top_p in (0, 1] and min_p in [0, 1].
ZG_API void validate(const SamplingOptions& options);

/// One token from one row of logits, in double precision; equal logits are ordered by rising id.
/// `draw` numbers the random draws: the same (seed, draw) gives the same token. Throws ConfigError
/// for options out of range or logits without a finite maximum.
ZG_API int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                            uint64_t draw);

/// Continues each of the `prompts`, which have equal lengths, by `length` tokens. If a row gets
/// longer than longest_context(), its last tokens are the context, as in minGPT. The tokens of
/// a row depend on its prompt, its number and the options, not on other rows. `make_tape` gives
/// inference tapes; `on_token` (optional) is called with each new token of row 0, the last one is
/// that which ends it. Throws
/// ConfigError for prompts that are empty or of different lengths.
ZG_API std::vector<std::vector<int32_t>> generate(
    const GPT& model, const std::function<Tape()>& make_tape,
    const std::vector<std::vector<int32_t>>& prompts, int64_t length,
    const SamplingOptions& options, const std::function<void(int32_t)>& on_token = {});

}  // namespace zg::models
