#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/gpt.h"

namespace zg::models {

/// Room for block_size positions of every layer, [B, capacity, C] keys and values each.
class ZG_API KeyValueCache {
 public:
  KeyValueCache(const GPTConfig& config, int64_t batch, DType dtype, const Device& device);
  int64_t length() const { return length_; }  ///< positions held
  int64_t capacity() const { return capacity_; }
  void clear() { length_ = 0; }
  void truncate(int64_t length);

 private:
  friend class GPT;
  std::vector<Tensor> keys_, values_;
  int64_t length_ = 0, capacity_ = 0;
};

struct SamplingOptions {
  double temperature = 1.0;  ///< divides the logits; 0: greedy
  int64_t top_k = 0;         ///< keep the k most likely; 0: all
  double top_p = 1.0;        ///< keep the smallest set of at least this probability
  uint64_t seed = 3407;
};

/// One token from one row of logits. `draw` numbers the draws of a run: the same (seed, draw) gives
/// the same token. ConfigError for options out of range.
ZG_API int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                            uint64_t draw);

/// Continues each of the equally long `prompts` by `length` tokens. Beyond block_size the window
/// slides as in minGPT: the last block_size tokens are the context. `on_token` (optional) sees each
/// token of row 0 as it is drawn.
ZG_API std::vector<std::vector<int32_t>> generate(
    const GPT& model, const std::function<Tape()>& make_tape,
    const std::vector<std::vector<int32_t>>& prompts, int64_t length,
    const SamplingOptions& options, const std::function<void(int32_t)>& on_token = {});

}  // namespace zg::models
