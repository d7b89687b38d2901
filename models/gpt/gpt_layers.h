#pragma once

#include <functional>
#include <optional>

#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/lora.h"
#include "zerograd/models/nn.h"
#include "zerograd/models/tensor_parallel/tensor_parallel.h"

namespace zg::models {

struct Block {
  const Unit* unit;
  bool parallel = false;  // GPTConfig::parallel_residual
  // Without a weight where the family has no such norm.
  nn::Norm norm_1, post_norm_1, norm_2, post_norm_2;
  nn::Attention attention;
  nn::Mlp mlp;
};

/// The layers of one pipeline stage as entries of a ParameterStore; null where another stage has
/// them.
struct GPTLayers {
  GPTConfig config;
  GPTPart part;          // its end_layer is resolved
  bool has_head = true;  // false: the part ends with the last hidden state
  // Used by passes that compute the loss; in other passes every rank has all tokens.
  TensorParallel parallel;
  LoraConfig lora;
  const Unit *embedding = nullptr, *head = nullptr;
  nn::Embedding wte;
  const Parameter* wpe = nullptr;  // null without learned positions
  std::optional<nn::Norm> embedding_norm;
  float embedding_scale = 0.0f;  // rounded to the dtype of computing; 0: none
  uint32_t embedding_site = 0;
  std::vector<Block> blocks;
  nn::Norm norm_f;
  nn::Embedding lm_head;  // wte if tied

  bool is_first() const { return part.first_layer == 0; }
  bool is_last() const { return part.end_layer == config.layers; }
  bool is_whole() const { return is_first() && is_last() && has_head; }
};

/// A pass without dropout in which every rank has all tokens.
nn::Pass pass_of_all_tokens(Tape& tape, const GPTLayers& layers);
/// The pass with the tables that its blocks share: ALiBi slopes, rotary positions. `positions`
/// counts the positions from 0 on; x is the input of a block.
nn::Pass with_tables(nn::Pass pass, const GPTLayers& layers, const Var& x, int64_t positions);

Var embed(const nn::Pass& pass, const GPTLayers& layers, const Tensor& ids, int64_t first_position);
/// The output, whose last sum the next norm adds.
nn::Residual run_block(const nn::Pass& pass, const Block& block, nn::Residual in);

/// Logits [B, T, V] of normed x, inside a HeadUse.
Var head(const nn::Pass& pass, const GPTLayers& layers, const Var& x);

/// For a pass that does not record: the stage's input. The first stage embeds `ids`, the others
/// receive the previous stage's output.
Var begin_stage(const nn::Pass& pass, const GPTLayers& layers, const Tensor& ids,
                int64_t first_position);
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
