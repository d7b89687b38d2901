#include "zerograd/models/gpt/gpt_layers.h"

#include <utility>

#include "zerograd/autograd/pipeline.h"
#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

nn::Pass pass_of_all_tokens(Tape& tape, const GPTLayers& layers) {
  return {.tape = tape, .parallel = {layers.parallel.ranks}};
}

nn::Pass with_tables(nn::Pass pass, const GPTLayers& layers, const Var& x, int64_t positions) {
  if (layers.blocks.empty()) return pass;
  if (layers.config.position == Position::alibi)
    pass.alibi_slopes = nn::alibi_slopes_of(layers.config.heads, pass.parallel, x);
  for (const Block& block : layers.blocks) {
    const nn::Attention& attention = block.attention;
    Tensor& table = attention.config().is_local ? pass.local_rope_table : pass.rope_table;
    if (!table) table = attention.rope_table(positions, x.dtype(), x.device());
  }
  return pass;
}

Var embed(const nn::Pass& pass, const GPTLayers& layers, const Tensor& ids,
          int64_t first_position) {
  Tape::Use use(pass.tape, *layers.embedding);
  Var x;
  if (pass.parallel.size() == 1 && !pass.positions) {
    const Var positions = layers.wpe ? pass.tape.parameter(*layers.wpe) : Var();
    x = layers.wte(pass, ids, positions, first_position);
  } else {
    x = layers.wte(pass, ids);
    if (layers.wpe) x = nn::add_positions(pass, *layers.wpe, x, first_position);
  }
  if (layers.embedding_scale > 0.0f) {
    const float scale = x.dtype() == DType::bf16  ? static_cast<float>(bf16(layers.embedding_scale))
                        : x.dtype() == DType::f16 ? static_cast<float>(f16(layers.embedding_scale))
                                                  : layers.embedding_scale;
    x = mul(x, scale);
  }
  if (layers.embedding_norm) x = (*layers.embedding_norm)(pass, x);
  return pass.drop(x, layers.embedding_site);
}

nn::Residual run_block(const nn::Pass& pass, const Block& block, nn::Residual in) {
  Tape::Use use(pass.tape, *block.unit);
  const auto after = [&](const nn::Norm& norm, const Var& y) {
    return norm.weight ? norm(pass, y) : y;
  };
  NormedSum first;
  if (block.norm_1.weight)
    first = block.norm_1.of_sum(pass, std::move(in));
  else
    first.sum = first.normed = std::exchange(in, {}).sum();
  const auto [x, before] = std::move(first);
  const Var mixed = after(block.post_norm_1, block.attention(pass, before));
  if (block.parallel) {
    const Var fed = block.mlp(pass, block.norm_2(pass, x));
    return {x, add(fed, mixed)};
  }
  if (!block.norm_2.weight) {
    const Var sum = add(x, mixed);
    return {sum, after(block.post_norm_2, block.mlp(pass, sum))};
  }
  const auto [sum, normed] = block.norm_2.add(pass, x, mixed);
  return {sum, after(block.post_norm_2, block.mlp(pass, normed))};
}

Var head(const nn::Pass& pass, const GPTLayers& layers, const Var& x) {
  return layers.lm_head.logits(pass, x);
}

Var begin_stage(const nn::Pass& pass, const GPTLayers& layers, const Tensor& ids,
                int64_t first_position) {
  const bool lacks_head = layers.is_last() && !layers.has_head;
  if (lacks_head || (!layers.is_whole() && !layers.part.mesh))
    throw ConfigError(fmt::format(
        "gpt: this model has layers {} to {} of {}{}; expected a whole model, or all stages of a "
        "mesh, for losses and logits; try stage(), which returns the hidden state",
        layers.part.first_layer, layers.part.end_layer, layers.config.layers,
        lacks_head ? " and no head" : ""));
  if (layers.is_first()) return embed(pass, layers, ids, first_position);
  const StageOutput between{{ids.extent(0), ids.extent(1), layers.config.width},
                            layers.part.activations};
  return Var(receive_activation(*layers.part.mesh, between, pass.tape.device()));
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

}  // namespace zg::models
