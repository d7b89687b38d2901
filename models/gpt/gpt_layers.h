#pragma once

#include <functional>
#include <optional>

#include "zerograd/models/gpt/gpt.h"
#include "zerograd/models/tensor_parallel/tensor_parallel.h"

namespace zg::models {

struct Norm {
  const Parameter *weight, *bias;
};
struct Projection {
  const Parameter *weight, *bias;
};
struct Block {
  const Unit* unit;
  Norm ln_1;
  Projection qkv, attention_out;
  Norm ln_2;
  Projection mlp_in, mlp_out;
  uint32_t attention_site, attention_out_site, mlp_out_site;  // random streams of dropout
};

/// The layers of one pipeline stage as entries of a ParameterStore; null where another stage has
/// them.
struct GPTLayers {
  GPTConfig config;
  GPTPart part;  // its end_layer is resolved
  // Used by passes that compute the loss; in other passes every rank has all tokens.
  TensorParallel parallel;
  const Unit *embedding = nullptr, *head = nullptr;
  const Parameter* wte = nullptr;
  const Parameter* wpe = nullptr;  // null without learned positions
  std::optional<Norm> embedding_norm;
  uint32_t embedding_site = 0;
  std::vector<Block> blocks;
  Norm ln_f = {};
  const Parameter* lm_head = nullptr;  // wte if tied

  bool is_first() const { return part.first_layer == 0; }
  bool is_last() const { return part.end_layer == config.layers; }
  bool is_whole() const { return is_first() && is_last(); }
};

/// Settings of one forward pass.
struct Pass {
  TensorParallel parallel;
  float dropout = 0.0f;  ///< a probability, 0 outside training
  ForwardPosition place;

  /// A pass without dropout in which every rank has all tokens.
  static Pass of_all_tokens(const GPTLayers& layers) {
    return {.parallel = {layers.parallel.ranks}};
  }
  /// Key for a tensor that every tensor rank has whole: the same mask on all of them.
  DropoutKey key(uint32_t site) const {
    return {.seed = place.seed,
            .step = static_cast<uint32_t>(place.step),
            .sample = static_cast<uint32_t>(place.first_sample),
            .site = site};
  }
  /// Key for a tensor that is divided among the tensor ranks: each has its own mask.
  DropoutKey key_of_rank(uint32_t site) const {
    return key(site + static_cast<uint32_t>(parallel.rank()));
  }
  /// Dropout of a tensor between the tensor-parallel layers.
  Var drop(const Var& x, uint32_t site) const {
    return zg::dropout(x, dropout, parallel.sequence ? key_of_rank(site) : key(site));
  }
};

/// The family's order of fused queries, keys and values.
inline QKVOrder qkv_order(const GPTConfig& config) {
  return config.family == Family::bloom ? QKVOrder::by_head : QKVOrder::by_part;
}

/// ALiBi slopes of this rank's heads, in the dtype and on the device of `like`. Absent with learned
/// positions.
Var alibi_slopes(const GPTConfig& config, const TensorParallel& parallel, const Var& like);

/// Maps fused projections qkv [B, T, 3C] to attention outputs [B, T, C], for this rank's heads.
using Attend = std::function<Var(const Var& qkv)>;

Var embed(Tape& tape, const GPTLayers& layers, const Tensor& ids, int64_t first_position,
          const Pass& pass);
Var run_block(Tape& tape, const Block& block, const Var& x, const Pass& pass, const Attend& attend);
Var norm(Tape& tape, const Norm& norm, const Var& x, const Pass& pass);

/// Logits [B, T, V] of normed x, inside a HeadUse.
Var head(Tape& tape, const GPTLayers& layers, const Var& x, const Pass& pass);

/// For a pass that does not record: the stage's input. The first stage embeds `ids`, the others
/// receive the previous stage's output.
Var begin_stage(Tape& tape, const GPTLayers& layers, const Tensor& ids, int64_t first_position,
                const Pass& pass);
/// Passes x on to the next stage. The last stage computes finish(x), which has this shape and
/// dtype, and every stage returns it.
Tensor end_stage(Tape& tape, const GPTLayers& layers, const Var& x, const Shape& shape, DType dtype,
                 const std::function<Tensor(const Var& x)>& finish);

/// Acquires the units that the head reads: its own and, when tied, also the embedding.
class HeadUse {
 public:
  HeadUse(Tape& tape, const GPTLayers& layers) : head_(tape, *layers.head) {
    if (layers.config.tied) embedding_.emplace(tape, *layers.embedding);
  }

 private:
  Tape::Use head_;
  std::optional<Tape::Use> embedding_;
};

}  // namespace zg::models
