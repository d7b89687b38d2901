#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/models/gpt/gpt_config.h"
#include "zerograd/models/nn.h"

namespace zg::models {

struct Block : nn::Module {
  // Without a weight where the family has no such norm.
  nn::Norm norm_1, post_norm_1, norm_2, post_norm_2;
  nn::Attention attention;
  nn::Mlp mlp;
  bool has_parallel_layers = false;  // GPTConfig::parallel_residual

  /// `layer`: in the whole model.
  Block(nn::Module* parent, const std::string& name, const GPTConfig& config, int64_t layer);
  /// The output, whose last sum the next norm adds.
  nn::Residual operator()(nn::Residual in) const;
};

/// The layers of one pipeline stage; null or default-constructed where another stage has them.
struct GPTLayers : nn::Module {
  GPTConfig config;
  GPTPart part;          // its end_layer is resolved
  bool has_head = true;  // false: the part ends with the last hidden state
  const Unit *embedding = nullptr, *head = nullptr;
  nn::Embedding wte;
  nn::Positions wpe;  // without a weight where positions are not learned
  nn::Norm embedding_norm;
  float embedding_scale = 0.0f;  // rounded to the dtype of computing; 0: none
  nn::Dropout embedding_dropout;
  std::vector<nn::UnitOf<Block>> blocks;
  nn::Norm norm_f;
  nn::Embedding lm_head;  // wte if tied

  GPTLayers(const ParallelStore& root, const GPTConfig& config, const GPTPart& part);
  bool is_first() const { return part.first_layer == 0; }
  bool is_last() const { return part.end_layer == config.layers; }
  bool is_whole() const { return is_first() && is_last() && has_head; }
};

/// The pass with the tables that its blocks share: ALiBi slopes, rotary positions. `positions`
/// counts the positions from 0 on, with those of the pass's cache; x is the input of a block.
nn::Pass with_tables(nn::Pass pass, const GPTLayers& layers, const Var& x, int64_t positions);

Var embed(const Tape& tape, const GPTLayers& layers, const Tensor& ids, int64_t first_position);

/// For a pass that does not record: the stage's input. The first stage embeds `ids`, the others
/// receive the previous stage's output.
Var begin_stage(const Tape& tape, const GPTLayers& layers, const Tensor& ids,
                int64_t first_position);
/// Passes x on to the next stage. The last stage computes finish(x), which has this shape and
/// dtype, and every stage returns it.
Tensor end_stage(const Tape& tape, const GPTLayers& layers, const Var& x, const Shape& shape,
                 DType dtype, const std::function<Tensor(const Var& x)>& finish);

/// Acquires the units that the head reads: its own and, when tied, also the embedding.
class HeadUse {
 public:
  HeadUse(const Tape& tape, const GPTLayers& layers) : head_(tape, *layers.head) {
    if (layers.config.tied) embedding_.emplace(tape, *layers.embedding);
  }

 private:
  Tape::Use head_;
  std::optional<Tape::Use> embedding_;
};

}  // namespace zg::models
