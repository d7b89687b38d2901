#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/models/gpt_part.h"

namespace zg::models {

/// Whose names and layout a decoder's parameters have.
enum class Family : uint8_t {
  gpt,   ///< minGPT's and GPT-2's; queries, keys and values one after the other
  bloom  ///< BLOOM's as Hugging Face has them; queries, keys and values of each head together
};
enum class Position : uint8_t {
  learned,  ///< a table with a row for each of block_size places
  alibi     ///< what lies further back scores less. Press et al. 2022, arXiv:2108.12409
};
ZG_API const char* name_of(Family family);
ZG_API const char* name_of(Position position);

/// A decoder-only transformer: pre-LayerNorm blocks, tanh-GELU, no bias in the head. As minGPT
/// builds it (Radford et al. 2019), or BLOOM.
struct GPTConfig {
  int64_t layers = 3, heads = 3, width = 48;
  int64_t vocabulary = 0;
  int64_t block_size = 0;  ///< the longest sequence
  bool tied = false;       ///< head and token embedding are one parameter
  float dropout = 0.1f;    ///< on embeddings, attention weights and both residual branches
  Family family = Family::gpt;
  Position position = Position::learned;
  bool embedding_norm = false;  ///< LayerNorm of the token embedding; only with bloom's names

  /// One of minGPT's nine names, "gpt-nano" to "gpt2-xl", without vocabulary and block size, or of
  /// BLOOM's, "bloom-560m" to "bloom-176b", with theirs; ConfigError lists them.
  ZG_API static GPTConfig preset(const std::string& model_type);
  /// preset() with the vocabulary and positions that the model was published with; 0 where it was
  /// not: gpt-mini, gpt-micro and gpt-nano. Head and embedding are as preset() has them.
  ZG_API static GPTConfig published(const std::string& model_type);
  /// What a family has where only sizes are said: BLOOM ALiBi, a norm of the embedding, a tied
  /// head.
  ZG_API static GPTConfig of(Family family);
  ZG_API static const std::vector<std::string>& preset_names();
};
/// Throws ConfigError naming the field: extents positive, heads a divisor of width that leaves a
/// head size of at most 1024, dropout in [0, 1), what the family has no name for.
ZG_API void validate(const GPTConfig& config);

/// Operations of forward and backward for each token: three products for each weight, two
/// operations for each multiply-add. A token attends to half a block on average, once for the
/// scores and once for the values. Recomputation is left out.
ZG_API double matmul_flops_per_token(const GPTConfig& config);

/// Where a forward pass stands, so that dropout masks depend on place alone.
struct ForwardPlace {
  uint64_t seed = 0;
  int64_t step = 0;          ///< optimizer step
  int64_t first_sample = 0;  ///< global index of the batch's first sample
};

/// Keys and values of every layer, for generation: one token at a time in O(length).
class KeyValueCache;

/// The same object serves every mode and, as long as it has no part, every rank; it holds
/// descriptions, never bytes. Ids are
/// [B, T] i32 | i64 with T up to block_size (ShapeError). A tape of one of its passes must be
/// walked before the model ends.
class ZG_API GPT {
 public:
  /// Adds units ("embedding", "block.0" ..., "head") and parameters with the family's names
  /// ("transformer.h.0.attn.c_attn.weight" [3C, C], ...) to the store, which must outlive it.
  /// Weights start as N(0, 0.02), those that write into the residual stream as N(0, 0.02 / sqrt(2
  /// layers)), biases 0. Weights of linear layers decay; embeddings (a tied head with them),
  /// LayerNorm and biases do not.
  /// Of a part of the model: what that part has of them. ConfigError when its tensor ranks do not
  /// divide the heads or, sequence parallel, the block size.
  GPT(ParameterStore& store, const GPTConfig& config, const GPTPart& part = {});
  ~GPT();

  const GPTConfig& config() const;  ///< of the whole model
  const GPTPart& part() const;      ///< of a whole model: all layers
  /// Parameters of the whole model without the head, as minGPT prints.
  int64_t transformer_parameters() const;

  /// Mean cross-entropy of predicting targets [B, T] (-1: ignored) from ids. Dropout is active on
  /// a recording tape. `checkpointing` keeps only each block's input for backward. Tensor ranks
  /// are given the same and get the same loss, in the same bits.
  Var loss(Tape& tape, const Tensor& ids, const Tensor& targets, const ForwardPlace& place,
           bool checkpointing = false) const;
  /// What this part's stage makes of `input`, absent on the first stage, which begins with ids:
  /// what goes to the next one or, on the last, the loss. loss() is this of all layers; of a part
  /// of them it needs a tape in inference mode (TapeError) and is every stage's.
  Var stage(Tape& tape, const Var& input, const Tensor& ids, const Tensor& targets,
            const ForwardPlace& place, bool checkpointing = false) const;
  /// What goes from stage to stage of stage() for so many samples.
  StageOutput between(int64_t samples) const;
  /// Logits [B, T, V] of all positions; no dropout.
  Var logits(Tape& tape, const Tensor& ids) const;
  /// Logits [B, V] of the last of `ids`, which continue what the cache holds; extends it. The tape
  /// is in inference mode (TapeError). ConfigError when the cache cannot hold T more.
  Tensor next_logits(Tape& tape, const Tensor& ids, KeyValueCache& cache) const;

 private:
  std::unique_ptr<struct GPTLayers> layers_;
};

}  // namespace zg::models
