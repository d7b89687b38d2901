#pragma once

#include <functional>
#include <optional>

#include "models/gpt.h"

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

/// What a GPT is made of, as places in a ParameterStore.
struct GPTLayers {
  GPTConfig config;
  const Unit *embedding, *head;
  const Parameter* wte;
  const Parameter* wpe;  // null without learned positions
  std::optional<Norm> embedding_norm;
  uint32_t embedding_site;
  std::vector<Block> blocks;
  Norm ln_f;
  const Parameter* lm_head;  // wte when tied
};

/// The dropouts of one forward pass: a probability (0 outside training) and a place.
struct Dropouts {
  float probability = 0.0f;
  ForwardPlace place;

  DropoutKey key(uint32_t site) const {
    return {.seed = place.seed,
            .step = static_cast<uint32_t>(place.step),
            .sample = static_cast<uint32_t>(place.first_sample),
            .site = site};
  }
  Var operator()(const Var& x, uint32_t site) const { return dropout(x, probability, key(site)); }
};

/// How the family fuses queries, keys and values.
inline QKVOrder qkv_order(const GPTConfig& config) {
  return config.family == Family::bloom ? QKVOrder::by_head : QKVOrder::by_part;
}

/// ALiBi's slopes [H] beside activations of `like`'s dtype and device; absent where positions are
/// learned.
Var alibi_slopes(const GPTConfig& config, const Var& like);

/// Fused projections qkv [B, T, 3C] to the mixed values [B, T, C].
using Attend = std::function<Var(const Var& qkv)>;

Var embed(Tape& tape, const GPTLayers& layers, const Tensor& ids, int64_t first_position,
          const Dropouts& dropouts);
Var run_block(Tape& tape, const Block& block, const Var& x, const Dropouts& dropouts,
              const Attend& attend);
Var norm(Tape& tape, const Norm& norm, const Var& x);

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
