#include "models/generate.h"

#include <algorithm>

#include "runtime/error.h"

namespace zg::models {
namespace {

using Rows = std::vector<std::vector<int32_t>>;

void check(const Rows& prompts, int64_t length) {
  if (length < 0)
    throw ConfigError("generate: expected a length from 0, got " + std::to_string(length));
  if (prompts.empty()) throw ConfigError("generate: expected at least one prompt, got none");
  const size_t tokens = prompts[0].size();
  for (const std::vector<int32_t>& prompt : prompts)
    if (prompt.empty() || prompt.size() != tokens)
      throw ConfigError("generate: expected prompts of one length, at least 1, got " +
                        std::to_string(tokens) + " and " + std::to_string(prompt.size()) +
                        " tokens; generate them one at a time");
}

/// The last `count` tokens of every row, [B, count].
Tensor last_tokens(const Rows& rows, int64_t count, const Device& device) {
  std::vector<int32_t> ids;
  for (const std::vector<int32_t>& row : rows) ids.insert(ids.end(), row.end() - count, row.end());
  return Tensor::from(ids, {static_cast<int64_t>(rows.size()), count}, device);
}

/// The next token of every row. On a meta device, which has no logits, it is 0: the vocabulary
/// there may be larger than this machine's memory.
std::vector<int32_t> draw_tokens(const Tensor& logits, const SamplingOptions& options,
                                 uint64_t index) {
  const int64_t B = logits.shape()[0], V = logits.shape()[1];
  std::vector<int32_t> tokens(static_cast<size_t>(B));
  if (logits.device().type() == Device::Type::meta) return tokens;
  const std::vector<double> wide = logits.to_doubles();
  const std::vector<float> values(wide.begin(), wide.end());
  for (size_t row = 0; row < tokens.size(); ++row)
    tokens[row] = sample_token(
        std::span(values).subspan(row * static_cast<size_t>(V), static_cast<size_t>(V)), options,
        uint64_t{row} << 32 | index);
  return tokens;
}

}  // namespace

Rows generate(const GPT& model, const std::function<Tape()>& make_tape, const Rows& prompts,
              int64_t length, const SamplingOptions& options,
              const std::function<void(int32_t)>& on_token) {
  check(prompts, length);
  validate(options);
  Rows rows = prompts;
  KeyValueCache cache(model.config());
  int64_t fresh = static_cast<int64_t>(rows[0].size());  // tokens that the cache has not seen
  for (int64_t i = 0; i < length; ++i) {
    if (cache.length() + fresh > cache.capacity()) {
      // Positions are absolute: when the window moves, everything in it has a new one.
      cache.clear();
      fresh = std::min(static_cast<int64_t>(rows[0].size()), cache.capacity());
    }
    Tape tape = make_tape();
    const Tensor ids = last_tokens(rows, fresh, tape.device());
    const std::vector<int32_t> next =
        draw_tokens(model.next_logits(tape, ids, cache), options, static_cast<uint64_t>(i));
    for (size_t row = 0; row < rows.size(); ++row) rows[row].push_back(next[row]);
    if (on_token) on_token(rows[0].back());
    fresh = 1;
  }
  return rows;
}

}  // namespace zg::models
