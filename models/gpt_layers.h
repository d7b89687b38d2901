#pragma once

#include <functional>
#include <optional>

#include "zerograd/models/gpt.h"
#include "zerograd/models/tensor_parallel.h"

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
  uint32_t attention_site, attention_out_site, mlp_out_site;  // of dropout
};

/// What a part of a GPT is made of, as places in a ParameterStore; null where another stage has it.
struct GPTLayers {
  GPTConfig config;
  GPTPart part;             // its end_layer is resolved
  TensorParallel parallel;  // of a loss; other passes have all tokens on every rank
  const Unit *embedding = nullptr, *head = nullptr;
  const Parameter* wte = nullptr;
  const Parameter* wpe = nullptr;  // and without learned positions
  std::optional<Norm> embedding_norm;
  uint32_t embedding_site = 0;
  std::vector<Block> blocks;
  Norm ln_f = {};
  const Parameter* lm_head = nullptr;  // wte when tied

  bool is_first() const { return part.first_layer == 0; }
  bool is_last() const { return part.end_layer == config.layers; }
  bool is_whole() const { return is_first() && is_last(); }
};

/// How one forward pass runs.
struct Pass {
  TensorParallel parallel;
  float dropout = 0.0f;  ///< a probability, 0 outside training
  ForwardPlace place;

  /// A pass without dropout that has all tokens on every rank.
  static Pass of_all_tokens(const GPTLayers& layers) {
    return {.parallel = {layers.parallel.ranks}};
  }
  /// Of what every rank has whole.
  DropoutKey key(uint32_t site) const {
    return {.seed = place.seed,
            .step = static_cast<uint32_t>(place.step),
            .sample = static_cast<uint32_t>(place.first_sample),
            .site = site};
  }
  /// Of what each rank has a part of.
  DropoutKey key_of_rank(uint32_t site) const {
    return key(site + static_cast<uint32_t>(parallel.rank()));
  }
  /// Between the split layers.
  Var drop(const Var& x, uint32_t site) const {
    return zg::dropout(x, dropout, parallel.sequence ? key_of_rank(site) : key(site));
  }
};

/// How the family fuses queries, keys and values.
inline QKVOrder qkv_order(const GPTConfig& config) {
  return config.family == Family::bloom ? QKVOrder::by_head : QKVOrder::by_part;
}

/// ALiBi's slopes of this rank's heads beside activations of `like`'s dtype and device; absent
/// where positions are learned.
Var alibi_slopes(const GPTConfig& config, const TensorParallel& parallel, const Var& like);

/// Fused projections qkv [B, T, 3C] to the mixed values [B, T, C], of this rank's heads.
using Attend = std::function<Var(const Var& qkv)>;

Var embed(Tape& tape, const GPTLayers& layers, const Tensor& ids, int64_t first_position,
          const Pass& pass);
Var run_block(Tape& tape, const Block& block, const Var& x, const Pass& pass, const Attend& attend);
Var norm(Tape& tape, const Norm& norm, const Var& x, const Pass& pass);

/// Logits [B, T, V] of normed x, inside a HeadUse.
Var head(Tape& tape, const GPTLayers& layers, const Var& x, const Pass& pass);

/// Of a pass that records nothing: what a stage begins with, embedded ids on the first one.
Var begin_stage(Tape& tape, const GPTLayers& layers, const Tensor& ids, int64_t first_position,
                const Pass& pass);
/// And what the last stage makes of its end, of this shape and dtype, on all stages.
Tensor end_stage(Tape& tape, const GPTLayers& layers, const Var& x, const Shape& shape, DType dtype,
                 const std::function<Tensor(const Var& x)>& finish);

/// Opens what the head reads: its own unit and, when tied, the embedding's once more.
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
