#include "zerograd/models/gpt/gpt_layers.h"

#include <utility>

#include "zerograd/autograd/pipeline.h"
#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

nn::Pass with_tables(nn::Pass pass, const GPTLayers& layers, const Var& x, int64_t positions) {
  if (layers.blocks.empty()) return pass;
  if (layers.config.position == Position::alibi)
    pass.alibi_slopes = nn::alibi_slopes_of(layers.config.heads, layers.parallel(), x);
  const int64_t first = pass.cache && !pass.positions ? pass.cache->length() : 0;
  for (const Block& block : layers.blocks) {
    const nn::Attention& attention = block.attention;
    Tensor& table = attention.config().is_local ? pass.local_rope_table : pass.rope_table;
    if (!table) table = attention.rope_table(positions, x.dtype(), x.device(), first);
  }
  return pass;
}

Var embed(const Tape& tape, const GPTLayers& layers, const Tensor& ids, int64_t first_position) {
  const Tape::Use use(tape, *layers.embedding);
  const Parameter* table = layers.wpe.weight;
  Var x = tape.constant(ids);
  // With groups, one rank adds the gradients of positions as several do.
  const bool is_alone = layers.parallel().size() == 1 && !layers.parallel().is_grouped();
  if (is_alone && !tape.get<nn::Pass>().positions) {
    const Var positions = table ? tape.parameter(*table) : Var();
    x = layers.wte(x, positions, first_position);
  } else {
    x = layers.wte(x);
    if (table) x = layers.wpe(x, first_position);
  }
  if (layers.embedding_scale > 0.0f) {
    const float scale = x.dtype() == DType::bf16  ? static_cast<float>(bf16(layers.embedding_scale))
                        : x.dtype() == DType::f16 ? static_cast<float>(f16(layers.embedding_scale))
                                                  : layers.embedding_scale;
    x = mul(x, scale);
  }
  if (layers.embedding_norm.weight) x = layers.embedding_norm(x);
  return layers.embedding_dropout(x);
}

nn::Residual Block::operator()(nn::Residual in) const {
  const auto after = [&](const nn::Norm& norm, const Var& y) { return norm.weight ? norm(y) : y; };
  NormedSum first;
  if (norm_1.weight)
    first = norm_1.of_sum(std::move(in));
  else
    first.sum = first.normed = std::exchange(in, {}).sum();
  const auto [x, before] = std::move(first);
  const Var mixed = after(post_norm_1, attention(before));
  if (has_parallel_layers) {
    const Var fed = mlp(norm_2(x));
    return {x, zg::add(fed, mixed)};
  }
  if (!norm_2.weight) {
    const Var sum = zg::add(x, mixed);
    return {sum, after(post_norm_2, mlp(sum))};
  }
  const auto [sum, normed] = norm_2.add(x, mixed);
  return {sum, after(post_norm_2, mlp(normed))};
}

Var begin_stage(const Tape& tape, const GPTLayers& layers, const Tensor& ids,
                int64_t first_position) {
  const bool lacks_head = layers.is_last() && !layers.has_head;
  if (lacks_head || (!layers.is_whole() && !layers.part.mesh))
    raise<ConfigError>(
        "gpt: this model has layers {} to {} of {}{}; expected a whole model, or all stages of a "
        "mesh, for losses and logits; try stage(), which returns the hidden state",
        layers.part.first_layer, layers.part.end_layer, layers.config.layers,
        lacks_head ? " and no head" : "");
  if (layers.is_first()) return embed(tape, layers, ids, first_position);
  const StageOutput between{{ids.extent(0), ids.extent(1), layers.config.width},
                            layers.part.activations};
  return tape.constant(receive_activation(*layers.part.mesh, between, tape.device()));
}

Tensor end_stage(const Tape& tape, const GPTLayers& layers, const Var& x, const Shape& shape,
                 DType dtype, const std::function<Tensor(const Var& x)>& finish) {
  if (layers.is_whole()) return finish(x);
  if (!layers.is_last()) send_activation(*layers.part.mesh, x.value());
  const Tensor end = layers.is_last() ? finish(x) : Tensor::empty(shape, dtype, tape.device());
  Communicator& stages = *layers.part.mesh->pipeline;
  stages.wait(stages.broadcast(end, stages.size() - 1, "what the last stage made"));
  return end;
}

}  // namespace zg::models
