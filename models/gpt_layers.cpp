#include "models/gpt_layers.h"

namespace zg::models {
namespace {

Var project(Tape& tape, const Projection& projection, const Var& x,
            Activation activation = Activation::none) {
  const Var weight = tape.parameter(*projection.weight), bias = tape.parameter(*projection.bias);
  return linear(x, weight, bias, activation);
}

}  // namespace

Var norm(Tape& tape, const Norm& norm, const Var& x) {
  const Var weight = tape.parameter(*norm.weight), bias = tape.parameter(*norm.bias);
  return layer_norm(x, weight, bias);
}

Var embed(Tape& tape, const GPTLayers& layers, const Tensor& ids, int64_t first_position,
          const Dropouts& dropouts) {
  Tape::Use use(tape, *layers.embedding);
  const Var tokens = tape.parameter(*layers.wte), positions = tape.parameter(*layers.wpe);
  const Var x = embedding(ids, tokens, positions, first_position);
  return dropouts(x, layers.embedding_site);
}

Var run_block(Tape& tape, const Block& block, const Var& x, const Dropouts& dropouts,
              const Attend& attend) {
  Tape::Use use(tape, *block.unit);
  Var mixed = attend(project(tape, block.c_attn, norm(tape, block.ln_1, x)));
  mixed = dropouts(project(tape, block.attention_out, mixed), block.attention_out_site);

  const Var gamma = tape.parameter(*block.ln_2.weight), beta = tape.parameter(*block.ln_2.bias);
  const auto [sum, normed] = add_layer_norm(x, mixed, gamma, beta);
  const Var hidden = project(tape, block.c_fc, normed, Activation::gelu_tanh);
  return add(sum, dropouts(project(tape, block.mlp_out, hidden), block.mlp_out_site));
}

}  // namespace zg::models
