#include "models/gpt_layers.h"

#include "kernels/alibi.h"

namespace zg::models {
namespace {

Var project(Tape& tape, const Projection& projection, const Var& x) {
  const Var weight = tape.parameter(*projection.weight), bias = tape.parameter(*projection.bias);
  return linear(x, weight, bias);
}

Var mlp(Tape& tape, const Block& block, const Var& x) {
  const Projection &fc = block.mlp_in, &out = block.mlp_out;
  const Var fc_weight = tape.parameter(*fc.weight), fc_bias = tape.parameter(*fc.bias);
  const Var out_weight = tape.parameter(*out.weight), out_bias = tape.parameter(*out.bias);
  return feed_forward(x, fc_weight, fc_bias, out_weight, out_bias, Activation::gelu_tanh);
}

}  // namespace

Var norm(Tape& tape, const Norm& norm, const Var& x) {
  const Var weight = tape.parameter(*norm.weight), bias = tape.parameter(*norm.bias);
  return layer_norm(x, weight, bias);
}

Var alibi_slopes(const GPTConfig& config, const Var& like) {
  if (config.position != Position::alibi) return {};
  const std::vector<float> slopes = zg::alibi_slopes(config.heads);
  if (accumulator(like.dtype()) == DType::f32)
    return Var(Tensor::from(slopes, {config.heads}, like.device()));
  const std::vector<double> wide(slopes.begin(), slopes.end());
  return Var(Tensor::from(wide, {config.heads}, like.device()));
}

Var embed(Tape& tape, const GPTLayers& layers, const Tensor& ids, int64_t first_position,
          const Dropouts& dropouts) {
  Tape::Use use(tape, *layers.embedding);
  const Var tokens = tape.parameter(*layers.wte);
  const Var positions = layers.wpe ? tape.parameter(*layers.wpe) : Var();
  Var x = embedding(ids, tokens, positions, first_position);
  if (layers.embedding_norm) x = norm(tape, *layers.embedding_norm, x);
  return dropouts(x, layers.embedding_site);
}

Var run_block(Tape& tape, const Block& block, const Var& x, const Dropouts& dropouts,
              const Attend& attend) {
  Tape::Use use(tape, *block.unit);
  Var mixed = attend(project(tape, block.qkv, norm(tape, block.ln_1, x)));
  mixed = dropouts(project(tape, block.attention_out, mixed), block.attention_out_site);

  const Var gamma = tape.parameter(*block.ln_2.weight), beta = tape.parameter(*block.ln_2.bias);
  const auto [sum, normed] = add_layer_norm(x, mixed, gamma, beta);
  return add(sum, dropouts(mlp(tape, block, normed), block.mlp_out_site));
}

}  // namespace zg::models
