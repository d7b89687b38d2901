#include "models/gpt.h"

#include <cmath>

#include "models/gpt_layers.h"
#include "runtime/error.h"

namespace zg::models {
namespace {

constexpr float weight_stddev = 0.02f;

/// Adds the parameters of one unit, in the order of minGPT's state dict.
struct Describe {
  ParameterStore& store;
  const GPTConfig& config;

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
    const std::string name = "transformer.h." + std::to_string(layer);
    const Unit& unit = store.unit("block." + std::to_string(layer));
    const auto site = [&](const char* place) {
      return static_cast<uint32_t>(hash_name((name + place).c_str()));
    };
    Block block{.unit = &unit};
    block.ln_1 = norm(unit, name + ".ln_1");
    block.c_attn = projection(unit, name + ".attn.c_attn", 3 * C, C, weight_stddev);
    block.attention_out = projection(unit, name + ".attn.c_proj", C, C, branch_stddev);
    block.ln_2 = norm(unit, name + ".ln_2");
    block.c_fc = projection(unit, name + ".mlp.c_fc", 4 * C, C, weight_stddev);
    block.mlp_out = projection(unit, name + ".mlp.c_proj", C, 4 * C, branch_stddev);
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
    layers.wte = weight(embedding, "transformer.wte.weight", {V, C}, weight_stddev, false);
    layers.wpe =
        weight(embedding, "transformer.wpe.weight", {config.block_size, C}, weight_stddev, false);
    layers.embedding_site = static_cast<uint32_t>(hash_name("transformer.drop"));
    for (int64_t layer = 0; layer < config.layers; ++layer) layers.blocks.push_back(block(layer));
    const Unit& head = store.unit("head");
    layers.head = &head;
    layers.ln_f = norm(head, "transformer.ln_f");
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
  const int heads = static_cast<int>(layers.config.heads);
  for (const Block& block : layers.blocks) {
    const auto run = [&block, dropouts, heads](Tape& on, std::span<const Var> inputs) {
      return run_block(on, block, inputs[0], dropouts, [&](const Var& qkv) {
        return attention(
            qkv, heads,
            {.dropout = dropouts.probability, .key = dropouts.key(block.attention_site)});
      });
    };
    x = checkpointing ? checkpoint(tape, {&x, 1}, run) : run(tape, {&x, 1});
  }
  return x;
}

}  // namespace

GPT::GPT(ParameterStore& store, const GPTConfig& config)
    : layers_(std::make_unique<GPTLayers>(Describe{store, validated(config)}.layers())) {}
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
