#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/models/gpt/gpt_part.h"

namespace zg::models {

/// The model family that defines names and layout of a decoder's parameters.
enum class Family : uint8_t {
  gpt,   ///< minGPT and GPT-2; all queries, then all keys, then all values
  bloom  ///< BLOOM in Hugging Face's layout; queries, keys and values of each head together
};
enum class Position : uint8_t {
  learned,  ///< a table with one row for each of block_size positions
  alibi     ///< bias that grows with distance. Press et al. 2022, arXiv:2108.12409
};
ZG_API const char* name_of(Family family);
ZG_API const char* name_of(Position position);

/// A decoder-only transformer as in minGPT (Radford et al. 2019) or BLOOM: pre-LayerNorm blocks,
/// tanh-GELU, no bias in the head.
struct GPTConfig {
  int64_t layers = 3, heads = 3, width = 48;
  int64_t vocabulary = 0;
  int64_t block_size = 0;  ///< the longest sequence
  bool tied = false;       ///< head and token embedding share one parameter
  float dropout = 0.1f;    ///< on embeddings, attention weights and both residual branches
  Family family = Family::gpt;
  Position position = Position::learned;
  bool embedding_norm = false;  ///< LayerNorm of the token embedding; only with bloom's names

  /// One of minGPT's nine names, "gpt-nano" to "gpt2-xl", without vocabulary and block size, or one
  /// of BLOOM's, "bloom-560m" to "bloom-176b", with both. ConfigError lists the names.
  ZG_API static GPTConfig preset(const std::string& model_type);
  /// preset() with vocabulary and block size of the published model. Both are 0 for gpt-mini,
  /// gpt-micro and gpt-nano, which were not published. Head and embedding are as in preset().
  ZG_API static GPTConfig published(const std::string& model_type);
  /// The family's defaults. BLOOM has ALiBi, a LayerNorm of the embedding and a tied head.
  ZG_API static GPTConfig of(Family family);
  ZG_API static const std::vector<std::string>& preset_names();
};
/// Throws ConfigError naming the field. Extents must be positive, heads must divide width with a
/// head size of at most 1024, dropout must be in [0, 1), and the family must have names for all
/// parameters.
ZG_API void validate(const GPTConfig& config);

/// Operations of forward and backward for each token: three products for each weight, two
/// operations for each multiply-add. A token attends to half a block on average, once for the
/// scores and once for the values. Recomputation is left out.
ZG_API double matmul_flops_per_token(const GPTConfig& config);

/// Position of a forward pass in the run. Dropout masks depend on it alone.
struct ForwardPosition {
  uint64_t seed = 0;
  int64_t step = 0;          ///< optimizer step
  int64_t first_sample = 0;  ///< global index of the batch's first sample
};

/// Keys and values of every layer for generation. With it one token takes O(length).
class KeyValueCache;

/// One object serves every mode, and every rank unless it describes only a part of the model. It
/// holds descriptions of parameters and no memory. Ids are [B, T] i32 | i64 with T up to block_size
/// (ShapeError). A tape of one of its passes must run backward before the model is destroyed.
class ZG_API GPT {
 public:
  /// Adds units ("embedding", "block.0" ..., "head") and parameters with the family's names
  /// ("transformer.h.0.attn.c_attn.weight" [3C, C], ...) to the store, which must outlive it.
  /// Weights start as N(0, 0.02). Weights whose output is added to the residual stream start as
  /// N(0, 0.02 / sqrt(2 layers)), biases as 0. Weights of linear layers decay; embeddings (and a
  /// head tied to them), LayerNorm and biases do not. If `part` is a part of the model, only the
  /// units and slices of that part are added. ConfigError when its tensor ranks do not divide the
  /// heads or, with sequence parallelism, the block size.
  GPT(ParameterStore& store, const GPTConfig& config, const GPTPart& part = {});
  ~GPT();

  const GPTConfig& config() const;  ///< configuration of the whole model
  const GPTPart& part() const;      ///< for a whole model: all layers
  /// Number of parameters of the whole model without the head, as minGPT prints it.
  int64_t transformer_parameters() const;

  /// Mean cross-entropy of predicting targets [B, T] (-1: ignored) from ids. Dropout is active on a
  /// recording tape. `checkpointing` keeps only each block's input for backward. All tensor ranks
  /// must be given the same batch; their losses have the same bits.
  Var loss(Tape& tape, const Tensor& ids, const Tensor& targets, const ForwardPosition& place,
           bool checkpointing = false) const;
  /// The output of this pipeline stage for `input`, which is absent on the first stage: that one
  /// starts from ids. It is the next stage's input or, on the last stage, the loss. loss() runs all
  /// stages. If the model is only a part, loss() needs a tape in inference mode (TapeError), and
  /// every stage returns the loss.
  Var stage(Tape& tape, const Var& input, const Tensor& ids, const Tensor& targets,
            const ForwardPosition& place, bool checkpointing = false) const;
  /// Shape of the tensor that stage() passes to the next stage, for the given number of samples.
  StageOutput between(int64_t samples) const;
  /// Logits [B, T, V] of all positions, without dropout.
  Var logits(Tape& tape, const Tensor& ids) const;
  /// Logits [B, V] of the last of `ids`, which continue the tokens in the cache, and appends `ids`
  /// to the cache. The tape must be in inference mode (TapeError). ConfigError when the cache
  /// cannot hold T more.
  Tensor next_logits(Tape& tape, const Tensor& ids, KeyValueCache& cache) const;

 private:
  std::unique_ptr<struct GPTLayers> layers_;
};

}  // namespace zg::models
