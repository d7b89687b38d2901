#include "zerograd/models/seq2seq/seq2seq_generate.h"

#include <memory>
#include <utility>

#include "zerograd/models/data/loader.h"
#include "zerograd/runtime/text/format.h"

// Batches of a Seq2Seq model, the rows of its cache, and generation.
namespace zg::models {
namespace {

using Rows = std::vector<std::vector<int32_t>>;

int64_t checked_capacity(const Seq2SeqConfig& config, int64_t capacity) {
  if (capacity < 0 || capacity > config.positions)
    raise<ConfigError>("seq2seq_cache: capacity {}; expected 0 to {}, the model's positions",
                       capacity, config.positions);
  return capacity == 0 ? config.positions : capacity;
}

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

Tensor shifted_right(const Tensor& labels, const Seq2SeqTokens& tokens) {
  if (!labels || labels.shape().rank() != 2 || labels.extent(1) < 1)
    raise<ShapeError>("shifted_right: labels {}; expected [B, T]",
                      labels ? labels.shape().str() : "absent");
  const auto id = [&](const Shape& shape, int32_t value) {
    return Tensor::full(shape, value, labels.dtype(), labels.device());
  };
  const Var start = id({labels.extent(0), 1}, tokens.decoder_start);
  if (labels.extent(1) == 1) return start.value();
  const Var before = slice(labels, 1, 0, labels.extent(1) - 1);
  const Var shifted = concat({start, before}, 1);
  const Var is_ignored = equal(shifted, ignored_label);
  return where(is_ignored, id({}, tokens.pad), shifted).value();
}

Seq2SeqBatch padded_batch(const Rows& sources, const Rows& targets, const Seq2SeqTokens& tokens,
                          const Device& device, int64_t source_length, int64_t target_length) {
  if (sources.empty() || (!targets.empty() && targets.size() != sources.size()))
    raise<ConfigError>(
        "padded_batch: {} sources and {} targets; expected as many targets as sources, 1 or more",
        sources.size(), targets.size());
  std::vector<int32_t> lengths;
  for (const std::vector<int32_t>& row : sources)
    lengths.push_back(static_cast<int32_t>(row.size()));
  Seq2SeqBatch batch{.source = padded(sources, tokens.pad, device, source_length, "source"),
                     .source_lengths = Tensor::from(lengths, {std::ssize(lengths)}, device)};
  if (!targets.empty())
    batch.labels = padded(targets, ignored_label, device, target_length, "target");
  return batch;
}

Seq2SeqCache::Seq2SeqCache(const Seq2SeqConfig& config, const Var& memory,
                           const Tensor& source_lengths, int64_t capacity)
    : tokens_(config.decoder_layers, checked_capacity(config, capacity)),
      memory_(config.decoder_layers, memory.value(), source_lengths) {
  for (int64_t row = 0; row < memory_.rows(); ++row) memory_rows_.push_back(row);
}

void Seq2SeqCache::reorder(std::span<const int64_t> rows) {
  std::vector<int64_t> memory_rows;
  for (const int64_t row : rows) {
    if (row < 0 || row >= this->rows())
      raise<ConfigError>("seq2seq_cache: reorder: there is no row {}; expected rows 0 to {}", row,
                         this->rows() - 1);
    memory_rows.push_back(memory_rows_[static_cast<size_t>(row)]);
  }
  if (tokens_.batch() > 0) tokens_.reorder(rows);
  // Adjacent rows with one row of the memory share it, if there are equally many for each.
  const size_t count = memory_rows.size();
  size_t group = 0;
  std::vector<int64_t> firsts;
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    for (end = begin + 1; end < count && memory_rows[end] == memory_rows[begin];) ++end;
    firsts.push_back(memory_rows[begin]);
    if (begin == 0) group = end;
    if (end - begin != group) group = 1;
  }
  if (firsts.size() * group != count) {
    group = 1;
    firsts = memory_rows;
  }
  memory_.reorder(firsts);
  memory_rows_.resize(count);
  for (size_t i = 0; i < count; ++i) memory_rows_[i] = static_cast<int64_t>(i / group);
}

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
