#include "zerograd/models/gpt/gpt_layers.h"

#include "zerograd/kernels/attention/attention.h"

namespace zg::models {
namespace {

/// Adds the learned position embeddings to x. With sequence parallelism a rank has only some
/// tokens.
Var add_positions(Tape& tape, const Parameter& parameter, const Var& x, int64_t first_position,
                  const Pass& pass) {
  const Var table = tape.parameter(parameter);
  const Var rows = pass.parallel.shared({&table, 1})[0];
  const int64_t tokens = x.shape()[1];
  const int64_t begin =
      first_position + (pass.parallel.sequence ? pass.parallel.rank() * tokens : 0);
  return add(x, slice(rows, 0, begin, begin + tokens));
}

/// The parameters of a block that every tensor rank has whole.
struct SharedOfBlock {
  Var gamma_1, beta_1, attention_bias, gamma_2, beta_2, mlp_bias;

  SharedOfBlock(Tape& tape, const Block& block, const TensorParallel& parallel) {
    const Var parameters[] = {
        tape.parameter(*block.ln_1.weight),        tape.parameter(*block.ln_1.bias),
        tape.parameter(*block.attention_out.bias), tape.parameter(*block.ln_2.weight),
        tape.parameter(*block.ln_2.bias),          tape.parameter(*block.mlp_out.bias)};
    const std::vector<Var> shared = parallel.shared(parameters);
    gamma_1 = shared[0], beta_1 = shared[1], attention_bias = shared[2];
    gamma_2 = shared[3], beta_2 = shared[4], mlp_bias = shared[5];
  }
};

}  // namespace

Var norm(Tape& tape, const Norm& norm, const Var& x, const Pass& pass) {
  const Var parameters[] = {tape.parameter(*norm.weight), tape.parameter(*norm.bias)};
  const std::vector<Var> shared = pass.parallel.shared(parameters);
  return layer_norm(x, shared[0], shared[1]);
}

Var alibi_slopes(const GPTConfig& config, const TensorParallel& parallel, const Var& like) {
  if (config.position != Position::alibi) return {};
  const std::vector<float> all = zg::alibi_slopes(config.heads);
  const auto [begin, heads] = rows_of_rank(config.heads, parallel);
  const std::vector<float> slopes(all.begin() + begin, all.begin() + begin + heads);
  if (accumulator(like.dtype()) == DType::f32)
    return Var(Tensor::from(slopes, {heads}, like.device()));
  const std::vector<double> wide(slopes.begin(), slopes.end());
  return Var(Tensor::from(wide, {heads}, like.device()));
}

Var embed(Tape& tape, const GPTLayers& layers, const Tensor& ids, int64_t first_position,
          const Pass& pass) {
  Tape::Use use(tape, *layers.embedding);
  const Var tokens = tape.parameter(*layers.wte);
  Var x;
  if (pass.parallel.size() == 1) {
    const Var positions = layers.wpe ? tape.parameter(*layers.wpe) : Var();
    x = embedding(ids, tokens, positions, first_position);
  } else {
    x = parallel_embedding(ids, tokens, layers.config.vocabulary, pass.parallel);
    if (layers.wpe) x = add_positions(tape, *layers.wpe, x, first_position, pass);
  }
  if (layers.embedding_norm) x = norm(tape, *layers.embedding_norm, x, pass);
  return pass.drop(x, layers.embedding_site);
}

Var head(Tape& tape, const GPTLayers& layers, const Var& x, const Pass& pass) {
  const Var weight = tape.parameter(*layers.lm_head);
  const Var own = column_parallel_linear(x, weight, /*bias=*/{}, pass.parallel);
  return join_vocabulary(own, layers.config.vocabulary, pass.parallel);
}

Var begin_stage(Tape& tape, const GPTLayers& layers, const Tensor& ids, int64_t first_position,
                const Pass& pass) {
  if (layers.is_first()) return embed(tape, layers, ids, first_position, pass);
  const StageOutput between{{ids.extent(0), ids.extent(1), layers.config.width},
                            layers.part.activations};
  return Var(receive_activation(*layers.part.mesh, between, tape.device()));
}

Tensor end_stage(Tape& tape, const GPTLayers& layers, const Var& x, const Shape& shape, DType dtype,
                 const std::function<Tensor(const Var& x)>& finish) {
  if (layers.is_whole()) return finish(x);
  if (!layers.is_last()) send_activation(*layers.part.mesh, x.value());
  const Tensor end = layers.is_last() ? finish(x) : Tensor::empty(shape, dtype, tape.device());
  Communicator& stages = *layers.part.mesh->pipeline;
  stages.wait(stages.broadcast(end, stages.size() - 1, "what the last stage made"));
  return end;
}

Var run_block(Tape& tape, const Block& block, const Var& x, const Pass& pass,
              const Attend& attend) {
  Tape::Use use(tape, *block.unit);
  const TensorParallel& parallel = pass.parallel;
  const SharedOfBlock shared(tape, block, parallel);
  const Var qkv_weight = tape.parameter(*block.qkv.weight);
  const Var qkv_bias = tape.parameter(*block.qkv.bias);
  const Var attention_weight = tape.parameter(*block.attention_out.weight);
  const Var before = layer_norm(x, shared.gamma_1, shared.beta_1);
  Var mixed = attend(column_parallel_linear(before, qkv_weight, qkv_bias, parallel));
  mixed = row_parallel_linear(mixed, attention_weight, shared.attention_bias, parallel);
  mixed = pass.drop(mixed, block.attention_out_site);

  const auto [sum, normed] = add_layer_norm(x, mixed, shared.gamma_2, shared.beta_2);
  const Var in_weight = tape.parameter(*block.mlp_in.weight);
  const Var in_bias = tape.parameter(*block.mlp_in.bias);
  const Var out_weight = tape.parameter(*block.mlp_out.weight);
  const Var fed =
      parallel_feed_forward(normed, in_weight, in_bias, out_weight, shared.mlp_bias, parallel);
  return add(sum, pass.drop(fed, block.mlp_out_site));
}

}  // namespace zg::models
