#include "models/gpt.h"

#include <cmath>

#include "models/gpt_layers.h"
#include "models/names.h"
#include "runtime/error.h"

namespace zg::models {
namespace {

constexpr float weight_stddev = 0.02f;

/// Adds the parameters of one unit, in the order of the family's state dict.
struct Describe {
  ParameterStore& store;
  const GPTConfig& config;
  const DecoderNames& names;

  const Parameter* weight(const Unit& unit, const std::string& name, const Shape& shape,
                          float stddev, bool decay) const {
    return &store.add(unit, name, shape, Init::normal(stddev), {.decay = decay});
  }
  Norm norm(const Unit& unit, const std::string& name) const {
    const Shape shape{config.width};
    const Parameter& weight = store.add(unit, name + ".weight", shape, Init::ones());
    return {&weight, &store.add(unit, name + ".bias", shape, Init::zeros())};
  }
  Projection projection(const Unit& unit, const std::string& name, int64_t out, int64_t in,
                        float stddev) const {
    const Parameter* matrix = weight(unit, name + ".weight", {out, in}, stddev, /*decay=*/true);
    return {matrix, &store.add(unit, name + ".bias", {out}, Init::zeros())};
  }

  Block block(int64_t layer) const {
    const int64_t C = config.width;
    // Each block adds two branches to the residual stream; this keeps its variance near 1 layer's.
    const float branch_stddev = weight_stddev / std::sqrt(2.0f * static_cast<float>(config.layers));
    const std::string name = block_name(layer);
    const Unit& unit = store.unit("block." + std::to_string(layer));
    const auto site = [&](const char* place) {
      return static_cast<uint32_t>(hash_name((name + place).c_str()));
    };
    Block block{.unit = &unit};
    block.ln_1 = norm(unit, name + names.norm_1);
    block.qkv = projection(unit, name + names.qkv, 3 * C, C, weight_stddev);
    block.attention_out = projection(unit, name + names.attention_out, C, C, branch_stddev);
    block.ln_2 = norm(unit, name + names.norm_2);
    block.mlp_in = projection(unit, name + names.mlp_in, 4 * C, C, weight_stddev);
    block.mlp_out = projection(unit, name + names.mlp_out, C, 4 * C, branch_stddev);
    block.attention_site = site(".attn.attn_dropout");
    block.attention_out_site = site(".attn.resid_dropout");
    block.mlp_out_site = site(".mlp.dropout");
    return block;
  }

  GPTLayers layers() const {
    const int64_t V = config.vocabulary, C = config.width;
    GPTLayers layers{.config = config};
    const Unit& embedding = store.unit("embedding");
    layers.embedding = &embedding;
    const auto table = [&](const std::string& name, int64_t rows) {
      return weight(embedding, name + ".weight", {rows, C}, weight_stddev, /*decay=*/false);
    };
    layers.wte = table(names.tokens, V);
    layers.wpe =
        config.position == Position::learned ? table(names.positions, config.block_size) : nullptr;
    if (config.embedding_norm) layers.embedding_norm = norm(embedding, names.embedding_norm);
    layers.embedding_site = static_cast<uint32_t>(hash_name("transformer.drop"));
    for (int64_t layer = 0; layer < config.layers; ++layer) layers.blocks.push_back(block(layer));
    const Unit& head = store.unit("head");
    layers.head = &head;
    layers.ln_f = norm(head, names.norm_f);
    layers.lm_head = config.tied
                         ? layers.wte
                         : weight(head, "lm_head.weight", {V, C}, weight_stddev, /*decay=*/true);
    return layers;
  }
};

const GPTConfig& validated(const GPTConfig& config) {
  validate(config);
  return config;
}

/// [B, T, C] after the last block.
Var trunk(Tape& tape, const GPTLayers& layers, const Tensor& ids, const Dropouts& dropouts,
          bool checkpointing) {
  if (ids.shape().rank() != 2 || ids.extent(1) > layers.config.block_size)
    throw ShapeError("gpt: ids " + ids.shape().str() +
                     " do not fit; expected [B, T] with T up to " + "the block size " +
                     std::to_string(layers.config.block_size));
  Var x = embed(tape, layers, ids, /*first_position=*/0, dropouts);
  // Made once for all blocks; checkpointed ones get it as an input.
  const Var slopes = alibi_slopes(layers.config, x);
  const int heads = static_cast<int>(layers.config.heads);
  const QKVOrder order = qkv_order(layers.config);
  for (const Block& block : layers.blocks) {
    const auto run = [&block, dropouts, heads, order](Tape& on, std::span<const Var> inputs) {
      return run_block(on, block, inputs[0], dropouts, [&](const Var& qkv) {
        return attention(qkv, heads,
                         {.dropout = dropouts.probability,
                          .key = dropouts.key(block.attention_site),
                          .alibi_slopes = inputs[1] ? inputs[1].value() : Tensor(),
                          .order = order});
      });
    };
    const Var inputs[] = {x, slopes};
    x = checkpointing ? checkpoint(tape, inputs, run) : run(tape, inputs);
  }
  return x;
}

}  // namespace

GPT::GPT(ParameterStore& store, const GPTConfig& config)
    : layers_(std::make_unique<GPTLayers>(
          Describe{store, validated(config), names_of(config.family)}.layers())) {}
GPT::~GPT() = default;

const GPTConfig& GPT::config() const { return layers_->config; }

int64_t GPT::transformer_parameters() const {
  const auto numel = [](const Unit* unit) {
    int64_t sum = 0;
    for (const Parameter* parameter : unit->parameters) sum += parameter->shape.numel();
    return sum;
  };
  int64_t sum = numel(layers_->embedding) + layers_->ln_f.weight->shape.numel() +
                layers_->ln_f.bias->shape.numel();
  for (const Block& block : layers_->blocks) sum += numel(block.unit);
  return sum;
}

Var GPT::loss(Tape& tape, const Tensor& ids, const Tensor& targets, const ForwardPlace& place,
              bool checkpointing) const {
  const float probability = tape.mode() == TapeMode::record ? config().dropout : 0.0f;
  const Var x = trunk(tape, *layers_, ids, {probability, place}, checkpointing);
  HeadUse use(tape, *layers_);
  const Var normed = norm(tape, layers_->ln_f, x);
  return projection_cross_entropy(normed, tape.parameter(*layers_->lm_head), targets);
}

Var GPT::logits(Tape& tape, const Tensor& ids) const {
  const Var x = trunk(tape, *layers_, ids, {}, /*checkpointing=*/false);
  HeadUse use(tape, *layers_);
  const Var normed = norm(tape, layers_->ln_f, x);
  return linear(normed, tape.parameter(*layers_->lm_head));
}

}  // namespace zg::models
