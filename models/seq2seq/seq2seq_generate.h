#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "zerograd/models/seq2seq/beam_search.h"
#include "zerograd/models/seq2seq/seq2seq.h"

namespace zg::models {

/// The model as a function for beam_search(), for these sources [B, S]: encodes them now, keeps
/// keys and values between the calls, and reorders them as BeamStep::from_rows says. `make_tape`
/// gives inference tapes. `capacity`: as in Seq2SeqCache. The model must outlive the function.
ZG_API NextLogits next_logits_of(const Seq2Seq& model, std::function<Tape()> make_tape,
                                 const Tensor& source, const Tensor& source_lengths = {},
                                 int64_t capacity = 0);

/// The options for a model: `start`, `eos`, `pad`, `forced_bos` and `forced_eos` are its tokens.
/// Sequences have at most `positions` tokens if no other limit is set.
inline BeamOptions beam_options_of(const Seq2SeqConfig& config) {
  BeamOptions options;
  options.start = {config.tokens.decoder_start};
  options.eos = config.tokens.eos;
  options.pad = config.tokens.pad;
  options.max_length = config.positions;
  options.forced_bos = config.tokens.forced_bos;
  options.forced_eos = config.tokens.forced_eos;
  return options;
}

/// beam_search() with the model, for sources of any lengths. Throws what beam_search() and
/// padded_batch() throw, and ConfigError for a longest sequence above the model's positions.
ZG_API Generated generate(const Seq2Seq& model, const std::function<Tape()>& make_tape,
                          const std::vector<std::vector<int32_t>>& sources,
                          const BeamOptions& options);

}  // namespace zg::models
