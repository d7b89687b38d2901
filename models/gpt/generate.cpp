#include "zerograd/models/gpt/generate.h"

#include <algorithm>

#include "zerograd/runtime/error.h"

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

/// The next token of a row of [B, V]. One row is read at a time, as a vocabulary can be large. On a
/// meta device, which has no logits, the token is 0.
int32_t draw_token(const Tensor& logits, int64_t row, const SamplingOptions& options,
                   uint64_t index) {
  if (logits.device().type() == Device::Type::meta) return 0;
  const int64_t V = logits.extent(1);
  const std::vector<double> wide = logits.flat(row * V, V).to_doubles();
  const std::vector<float> values(wide.begin(), wide.end());
  return sample_token(values, options, static_cast<uint64_t>(row) << 32 | index);
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
    const Tensor logits = model.next_logits(tape, ids, cache);
    for (size_t row = 0; row < rows.size(); ++row)
      rows[row].push_back(
          draw_token(logits, static_cast<int64_t>(row), options, static_cast<uint64_t>(i)));
    if (on_token) on_token(rows[0].back());
    fresh = 1;
  }
  return rows;
}

}  // namespace zg::models
