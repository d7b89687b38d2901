#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "autograd/ops.h"

namespace zg::models {

/// A decoder-only transformer as minGPT builds it: learned positions, pre-LayerNorm blocks,
/// tanh-GELU, no bias in the head. Radford et al. 2019.
struct GPTConfig {
  int64_t layers = 3, heads = 3, width = 48;
  int64_t vocabulary = 0;
  int64_t block_size = 0;  ///< the longest sequence
  bool tied = false;       ///< head and token embedding are one parameter
  float dropout = 0.1f;    ///< on embeddings, attention weights and both residual branches

  /// Sizes of one of minGPT's nine names, "gpt-nano" to "gpt2-xl"; ConfigError lists them.
  ZG_API static GPTConfig preset(const std::string& model_type);
  ZG_API static const std::vector<std::string>& preset_names();
};
/// Throws ConfigError naming the field: extents positive, heads a divisor of width that leaves a
/// head size of at most 1024, dropout in [0, 1).
ZG_API void validate(const GPTConfig& config);

/// Where a forward pass stands, so that dropout masks depend on place alone.
struct ForwardPlace {
  uint64_t seed = 0;
  int64_t step = 0;          ///< optimizer step
  int64_t first_sample = 0;  ///< global index of the batch's first sample
};

/// Keys and values of every layer, for generation: one token at a time in O(length).
class KeyValueCache;

/// The same object serves every rank and mode; it holds descriptions, never bytes. Ids are
/// [B, T] i32 | i64 with T up to block_size (ShapeError). A tape of one of its passes must be
/// walked before the model ends.
class ZG_API GPT {
 public:
  /// Adds units ("embedding", "block.0" ..., "head") and parameters with minGPT's names
  /// ("transformer.h.0.attn.c_attn.weight" [3C, C], ...) to the store, which must outlive it.
  /// Weights start as N(0, 0.02), those of c_proj as N(0, 0.02 / sqrt(2 layers)), biases 0. Weights
  /// of linear layers decay; embeddings (a tied head with them), LayerNorm and biases do not.
  GPT(ParameterStore& store, const GPTConfig& config);
  ~GPT();

  const GPTConfig& config() const;
  /// Parameters without the head, as minGPT prints.
  int64_t transformer_parameters() const;

  /// Mean cross-entropy of predicting targets [B, T] (-1: ignored) from ids. Dropout is active on
  /// a recording tape. `checkpointing` keeps only each block's input for backward.
  Var loss(Tape& tape, const Tensor& ids, const Tensor& targets, const ForwardPlace& place,
           bool checkpointing = false) const;
  /// Logits [B, T, V] of all positions; no dropout.
  Var logits(Tape& tape, const Tensor& ids) const;
  /// Logits [B, V] of the last of `ids`, which continue what the cache holds; extends it. The tape
  /// is in inference mode (TapeError). ConfigError when the cache cannot hold T more.
  Tensor next_logits(Tape& tape, const Tensor& ids, KeyValueCache& cache) const;

 private:
  std::unique_ptr<struct GPTLayers> layers_;
};

}  // namespace zg::models
