#include "zerograd/models/seq2seq/seq2seq_generate.h"

#include <memory>
#include <utility>

#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

std::vector<float> floats_of(const Tensor& x) {
  if (x.dtype() == DType::f32) return x.to_host<float>();
  const std::vector<double> wide = x.to_doubles();
  return {wide.begin(), wide.end()};
}

/// The most tokens of a sequence, `start` included.
int64_t longest_sequence(const BeamOptions& options) {
  constexpr int64_t default_new_tokens = 20;
  const auto start = static_cast<int64_t>(options.start.size());
  if (options.max_new_tokens) return start + *options.max_new_tokens;
  return options.max_length.value_or(start + default_new_tokens);
}

}  // namespace

NextLogits next_logits_of(const Seq2Seq& model, std::function<Tape()> make_tape,
                          const Tensor& source, const Tensor& source_lengths, int64_t capacity) {
  Tape encoder = make_tape();
  const Var memory = model.encode(encoder, source, source_lengths);
  const auto cache =
      std::make_shared<Seq2SeqCache>(model.config(), memory, source_lengths, capacity);
  return [&model, cache, make_tape = std::move(make_tape)](const BeamStep& step) {
    if (step.may_reorder) cache->reorder(step.from_rows);
    const auto rows = static_cast<int64_t>(step.from_rows.size());
    Tape tape = make_tape();
    const Tensor ids = Tensor::from(
        step.tokens, {rows, static_cast<int64_t>(step.tokens.size()) / rows}, tape.device());
    return floats_of(model.next_logits(tape, ids, *cache));
  };
}

Generated generate(const Seq2Seq& model, const std::function<Tape()>& make_tape,
                   const std::vector<std::vector<int32_t>>& sources, const BeamOptions& options) {
  validate(options);
  const Seq2SeqConfig& config = model.config();
  const int64_t longest = longest_sequence(options);
  if (longest > config.positions)
    raise<ConfigError>(
        "generate: sequences of up to {} tokens; expected at most the model's {} positions; try "
        "{} {}",
        longest, config.positions, options.max_new_tokens ? "max_new_tokens" : "max_length",
        options.max_new_tokens ? config.positions - static_cast<int64_t>(options.start.size())
                               : config.positions);
  const Device device = make_tape().device();
  const Seq2SeqBatch batch = padded_batch(sources, {}, config.tokens, device);
  const NextLogits next =
      next_logits_of(model, make_tape, batch.source, batch.source_lengths, longest);
  return beam_search(next, config.vocabulary, sources, options);
}

}  // namespace zg::models
