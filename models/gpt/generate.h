#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "zerograd/models/gpt/gpt.h"

namespace zg::models {

/// Keys and values of every layer for block_size positions: each [B, capacity, C] in the model's
/// dtype. A tensor-parallel rank has those of its own heads. The first next_logits() allocates the
/// memory.
class ZG_API KeyValueCache {
 public:
  explicit KeyValueCache(const GPTConfig& config);
  int64_t length() const { return length_; }  ///< positions held
  int64_t capacity() const { return capacity_; }
  void clear() { length_ = 0; }
  void truncate(int64_t length);  ///< removes later positions; ConfigError if fewer are held

 private:
  friend class GPT;
  struct Layer {
    Tensor keys, values;
  };
  /// Copies k and v from qkv [B, T, 3C] to the positions length() to length() + T of a layer. Uses
  /// B, H, T and D of `shape`.
  void write(size_t layer, const Tensor& qkv, const AttentionShape& shape, QKVOrder order,
             Stream& stream);
  std::vector<Layer> layers_;
  int64_t length_ = 0, capacity_ = 0;
};

struct SamplingOptions {
  double temperature = 1.0;  ///< divides the logits; 0: greedy
  int64_t top_k = 0;         ///< keep the k most likely; 0: all
  double top_p = 1.0;        ///< then keep the smallest set with at least this total probability
  uint64_t seed = 3407;
};
/// Throws ConfigError naming the field unless temperature is finite and at least 0, top_k at least
/// 0 and top_p in (0, 1].
ZG_API void validate(const SamplingOptions& options);

/// One token from one row of logits, in double precision; equal logits are ordered by rising id.
/// `draw` numbers the random draws: the same (seed, draw) gives the same token. Throws ConfigError
/// for options out of range or logits without a finite maximum.
ZG_API int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                            uint64_t draw);

/// Continues each of the `prompts`, which have equal lengths, by `length` tokens. If a row gets
/// longer than block_size, its last block_size tokens are the context, as in minGPT. The tokens of
/// a row depend on its prompt, its number and the options, not on other rows. `make_tape` gives
/// inference tapes; `on_token` (optional) is called with each new token of row 0. Throws
/// ConfigError for prompts that are empty or of different lengths.
ZG_API std::vector<std::vector<int32_t>> generate(
    const GPT& model, const std::function<Tape()>& make_tape,
    const std::vector<std::vector<int32_t>>& prompts, int64_t length,
    const SamplingOptions& options, const std::function<void(int32_t)>& on_token = {});

}  // namespace zg::models
