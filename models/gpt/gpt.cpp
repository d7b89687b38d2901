#include "zerograd/models/gpt/gpt.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/models/gpt/family.h"
#include "zerograd/models/gpt/gpt_layers.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

GPTPart part_of(const Mesh& mesh, const GPTConfig& config, DType activations,
                bool sequence_parallel) {
  const int stages = mesh.shape.pipeline;
  if (config.layers < stages)
    throw ConfigError(
        fmt::format("gpt: pipeline: expected at most the model's {} layers, got {} stages",
                    config.layers, stages));
  const std::vector<double> costs(static_cast<size_t>(config.layers), layer_flops(config));
  const std::vector<int64_t> borders =
      balanced_stages(costs, /*first=*/0.0, head_flops(config), stages);
  const auto stage = static_cast<size_t>(mesh.stage);
  return {.mesh = &mesh,
          .first_layer = borders[stage],
          .end_layer = mesh.stage + 1 < stages ? borders[stage + 1] : -1,
          .activations = activations,
          .sequence_parallel = sequence_parallel};
}

namespace {

constexpr float weight_stddev = 0.02f;

/// Adds the parameters of one unit, in the order of the family's state dict.
struct Describe {
  ParallelStore store;
  const GPTConfig& config;
  const GPTPart& part;
  const DecoderNames& names;

  const Unit& unit(const std::string& name) const { return store.store.unit(name); }
  /// Adds a table with one row per token; each tensor rank has some rows.
  nn::Embedding vocabulary(const Unit& unit, const std::string& name,
                           const ParallelStore::Options& options) const {
    return {store,
            unit,
            name,
            {.tokens = config.vocabulary,
             .width = config.width,
             .stddev = weight_stddev,
             .options = options}};
  }
  nn::Norm norm(const Unit& unit, const std::string& name) const {
    return {store,
            unit,
            name,
            {.width = config.width, .kind = config.norm, .epsilon = config.norm_epsilon}};
  }
  nn::AttentionConfig attention(const std::string& block, int64_t layer) const {
    const bool is_local = config.window_period == 0 || (layer + 1) % config.window_period != 0;
    nn::AttentionConfig attention{.width = config.width,
                                  .heads = config.heads,
                                  .kv_heads = config.kv_heads,
                                  .head_size = config.head_size,
                                  .bias = config.qkv_bias,
                                  .out_bias = config.bias,
                                  .rotated_share = config.rotated_share,
                                  .query_key_norm = config.query_key_norm,
                                  .wide_query_key_norm = row_of(config.family).wide_query_key_norm,
                                  .norm = config.norm,
                                  .norm_epsilon = config.norm_epsilon,
                                  .window = is_local ? config.window : 0,
                                  .stddev = weight_stddev,
                                  .out_stddev = residual_stddev(),
                                  .names = names.attention,
                                  .site = block + ".attn"};
    if (config.position == Position::rope) attention.rope = config.rope;
    if (config.window > 0 && is_local && config.local_theta > 0.0) {
      attention.rope = RopeOptions{.theta = config.local_theta};
      attention.is_local = true;
    }
    if (config.query_scalar > 0)
      attention.scale =
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.query_scalar)));
    if (names.attention.qkv) attention.fused = names.qkv_order;
    return attention;
  }
  // Each block adds two branches to the residual stream; this keeps its variance as with one layer.
  float residual_stddev() const {
    return weight_stddev / std::sqrt(2.0f * static_cast<float>(config.layers));
  }

  Block block(int64_t layer) const {
    const std::string name = block_name(config.family, layer);
    const Unit& unit = this->unit(fmt::format("block.{}", layer));
    Block block{.unit = &unit, .parallel = config.parallel_residual};
    const auto optional = [&](const char* part) {
      return part ? norm(unit, name + part) : nn::Norm();
    };
    block.norm_1 = optional(names.norm_1);
    block.attention =
        nn::Attention(store, unit, name, attention(name, layer), layer - part.first_layer);
    block.post_norm_1 = optional(names.post_norm_1);
    block.norm_2 = optional(names.norm_2);
    block.post_norm_2 = optional(names.post_norm_2);
    block.mlp = nn::Mlp(store, unit, name,
                        {.width = config.width,
                         .hidden = config.hidden,
                         .kind = config.mlp,
                         .bias = config.bias,
                         .stddev = weight_stddev,
                         .out_stddev = residual_stddev(),
                         .names = names.mlp,
                         .site = name + ".mlp"});
    return block;
  }

  void describe_embedding(GPTLayers& layers) const {
    // If the head is tied, the last of several stages also has the token embedding, but nothing
    // else of this unit.
    if (!layers.is_first() && !(layers.has_head && config.tied)) return;
    const Unit& embedding = unit("embedding");
    layers.embedding = &embedding;
    layers.wte = vocabulary(embedding, names.tokens,
                            {.copy = layers.is_first() ? Copy::own : Copy::mirror,
                             .has_mirror = layers.is_first() && config.tied && !layers.is_last()});
    if (!layers.is_first()) return;
    if (config.position == Position::learned)
      layers.wpe = &store.whole(embedding, std::string(names.positions) + ".weight",
                                {config.block_size, config.width}, Init::normal(weight_stddev));
    if (config.embedding_norm) layers.embedding_norm = norm(embedding, names.embedding_norm);
    if (row_of(config.family).scaled_embedding)
      layers.embedding_scale = std::sqrt(static_cast<float>(config.width));
    layers.embedding_site = static_cast<uint32_t>(hash_name("transformer.drop"));
  }

  void describe_head(GPTLayers& layers) const {
    if (!layers.is_last()) return;
    const Unit& head = unit("head");
    layers.head = &head;
    layers.norm_f = norm(head, names.norm_f);
    if (!layers.has_head) return;
    layers.lm_head = config.tied ? layers.wte : vocabulary(head, names.head, {.decay = true});
  }

  GPTLayers layers() const {
    GPTLayers layers{.config = config,
                     .part = part,
                     .has_head = part.end_layer < 0,
                     .parallel = store.parallel,
                     .lora = store.lora};
    if (layers.has_head) layers.part.end_layer = config.layers;
    const auto [first, end] = std::pair(part.first_layer, layers.part.end_layer);
    if (first < 0 || end < first || end > config.layers)
      throw ConfigError(
          fmt::format("gpt: part: layers {} to {}; expected a range of the model's {} layers, with "
                      "end_layer {} for the last hidden state and -1 for the head, too",
                      first, part.end_layer, config.layers, config.layers));
    describe_embedding(layers);
    for (int64_t layer = layers.part.first_layer; layer < layers.part.end_layer; ++layer)
      layers.blocks.push_back(block(layer));
    describe_head(layers);
    check_adapters(layers);
    return layers;
  }

  void check_adapters(const GPTLayers& layers) const {
    if (!store.lora.enabled()) return;
    if (layers.is_whole() && store.parallel.size() == 1)
      return check_targets(store.lora, store.store);
    ParameterStore all;  // a part may lack layers that a target names
    const GPT whole(all, config, {}, store.lora);
    for (const auto& parameter : store.store.parameters())
      if (parameter->trainable) return;
    throw ConfigError(fmt::format(
        "gpt: lora: layers {} to {} have no adapter, and nothing to train; expected some on each "
        "pipeline stage; try fewer stages or more targets",
        layers.part.first_layer, layers.part.end_layer - 1));
  }
};

TensorParallel checked(const GPTConfig& config, const GPTPart& part) {
  if (!part.mesh) return {};
  const TensorParallel parallel{part.mesh->tensor, part.sequence_parallel};
  require_divisor("gpt", "heads", config.heads, parallel);
  require_divisor("gpt", "key-value heads", kv_heads_of(config), parallel);
  if (parallel.sequence && config.block_size % parallel.size() != 0)
    throw ConfigError(fmt::format(
        "gpt: sequence parallel: expected a block size that {} tensor ranks divide, got {}",
        parallel.size(), config.block_size));
  return parallel;
}

template <class Config>
const Config& validated(const Config& config) {
  validate(config);
  return config;
}

void check_ids(const GPTConfig& config, const Tensor& ids) {
  if (ids.shape().rank() != 2 || ids.extent(1) > config.block_size)
    throw ShapeError(
        fmt::format("gpt: ids {} do not fit; expected [B, T] with T up to the block size {}",
                    ids.shape(), config.block_size));
}

void check_documents(const Tensor& ids, const Documents& documents) {
  if (!documents.starts != !documents.positions)
    throw ConfigError(
        fmt::format("gpt: documents: expected both starts and positions, or neither; got {} alone",
                    documents.starts ? "starts" : "positions"));
  for (const auto& [name, tensor] :
       {std::pair("starts", &documents.starts), std::pair("positions", &documents.positions)})
    if (*tensor && tensor->shape() != ids.shape())
      throw ShapeError(
          fmt::format("gpt: documents: {} {} do not fit; expected the shape of ids, {}", name,
                      tensor->shape(), ids.shape()));
}

/// [B, T, C] after this part's last block. A checkpointed block has one input, so it adds its last
/// sum itself.
nn::Residual trunk(const nn::Pass& pass, const GPTLayers& layers, const Var& first, int64_t tokens,
                   bool checkpointing, const nn::BlockHook& hook) {
  const nn::Pass tables = with_tables(pass, layers, first, tokens);  // made once for all blocks
  int64_t layer = layers.part.first_layer;
  nn::Residual x{hook && layer == 0 ? hook(0, first) : first};
  for (const Block& block : layers.blocks) {
    if (!checkpointing)
      x = run_block(tables, block, std::move(x));
    else
      x.x =
          nn::checkpoint(tables, {x.x}, [&block](const nn::Pass& on, std::span<const Var> inputs) {
            return run_block(on, block, {inputs[0]}).sum();
          });
    ++layer;
    if (hook) x = {hook(layer, std::exchange(x, {}).sum())};
  }
  return x;
}

/// The blocks of this rank in a pass as in training.
nn::Residual run_stage(const nn::Pass& pass, const GPTLayers& layers, const Var& input,
                       const Tensor& ids, bool checkpointing, const nn::BlockHook& hook) {
  const Var first = layers.is_first() ? embed(pass, layers, ids, 0) : input;
  return trunk(pass, layers, first, ids.extent(1), checkpointing, hook);
}

nn::Pass pass_of(Tape& tape, const GPTLayers& layers, const Tensor& ids,
                 const ForwardPosition& place, const Documents& documents,
                 const ForwardOptions& options) {
  check_ids(layers.config, ids);
  check_documents(ids, documents);
  const bool trains = tape.mode() == TapeMode::record;
  return {.tape = tape,
          .parallel = layers.parallel,
          .dropout = trains ? layers.config.dropout : 0.0f,
          .place = place,
          .starts = documents.starts,
          .positions = documents.positions,
          .lora_dropout = trains ? layers.lora.dropout : 0.0f,
          .adapters = options.adapters};
}

Var last_hidden(const nn::Pass& pass, const GPTLayers& layers, nn::Residual x) {
  const Tape::Use use(pass.tape, *layers.head);
  return layers.norm_f.of_sum(pass, std::move(x)).normed;
}

Var head_loss(const nn::Pass& pass, const GPTLayers& layers, nn::Residual x,
              const Tensor& targets) {
  HeadUse use(pass.tape, layers);
  const Var normed = layers.norm_f.of_sum(pass, std::move(x)).normed;
  return layers.lm_head.loss(pass, normed, targets);
}

}  // namespace

GPT::GPT(ParameterStore& store, const GPTConfig& config, const GPTPart& part,
         const LoraConfig& lora)
    : layers_(std::make_unique<GPTLayers>(
          Describe{{store, checked(validated(config), part), validated(lora)},
                   config,
                   part,
                   names_of(config.family)}
              .layers())) {}
GPT::~GPT() = default;

const GPTConfig& GPT::config() const { return layers_->config; }
const GPTPart& GPT::part() const { return layers_->part; }
const LoraConfig& GPT::lora() const { return layers_->lora; }

int64_t GPT::transformer_parameters() const {
  if (!layers_->is_whole()) {
    ParameterStore store;
    return GPT(store, config()).transformer_parameters();
  }
  const auto numel = [](const Unit* unit) {
    int64_t sum = 0;
    for (const Parameter* parameter : unit->parameters)
      if (lora_layer(parameter->name).empty()) sum += parameter->whole.numel();
    return sum;
  };
  const nn::Norm& last = layers_->norm_f;
  int64_t sum = numel(layers_->embedding) + last.weight->whole.numel() +
                (last.bias ? last.bias->whole.numel() : 0);
  for (const Block& block : layers_->blocks) sum += numel(block.unit);
  return sum;
}

StageOutput GPT::stage_output(int64_t samples) const {
  const TensorParallel& parallel = layers_->parallel;
  const int64_t tokens = config().block_size / (parallel.sequence ? parallel.size() : 1);
  return {{samples, tokens, config().width}, layers_->part.activations};
}

Var GPT::stage(Tape& tape, const Var& input, const Tensor& ids, const Tensor& targets,
               const ForwardPosition& place, bool checkpointing, const Documents& documents,
               const ForwardOptions& options) const {
  const nn::Pass pass = pass_of(tape, *layers_, ids, place, documents, options);
  nn::Residual x = run_stage(pass, *layers_, input, ids, checkpointing, options.hook);
  if (!layers_->is_last()) return x.sum();
  if (layers_->has_head) return head_loss(pass, *layers_, std::move(x), targets);
  return last_hidden(pass, *layers_, std::move(x));
}

Var GPT::hidden(Tape& tape, const Tensor& ids, const ForwardPosition& place, bool checkpointing,
                const Documents& documents, const ForwardOptions& options) const {
  if (!layers_->is_first() || !layers_->is_last())
    raise<ConfigError>(
        "gpt: hidden: this rank has layers {} to {} of {}; expected a rank with all layers; on a "
        "pipeline try stage() of a model whose last part has no head (GPTPart::end_layer)",
        part().first_layer, part().end_layer, config().layers);
  const nn::Pass pass = pass_of(tape, *layers_, ids, place, documents, options);
  nn::Residual x = run_stage(pass, *layers_, {}, ids, checkpointing, options.hook);
  return last_hidden(pass, *layers_, std::move(x));
}

Var GPT::loss(Tape& tape, const Tensor& ids, const Tensor& targets, const ForwardPosition& place,
              bool checkpointing, const Documents& documents, const ForwardOptions& options) const {
  if (layers_->is_whole())
    return stage(tape, {}, ids, targets, place, checkpointing, documents, options);
  if (tape.mode() == TapeMode::record)
    throw TapeError(
        fmt::format("loss: this rank has layers {} to {} of {}; expected a tape in inference mode; "
                    "try stage() in run_pipeline()",
                    part().first_layer, part().end_layer, config().layers));
  nn::Pass pass = pass_of(tape, *layers_, ids, place, documents, options);
  pass.parallel.sequence = false;  // every rank has all tokens
  const Var first = begin_stage(pass, *layers_, ids, /*first_position=*/0);
  const Var x =
      trunk(pass, *layers_, first, ids.extent(1), /*checkpointing=*/false, options.hook).sum();
  return Var(end_stage(tape, *layers_, x, {}, accumulator(part().activations), [&](const Var& end) {
    return head_loss(pass, *layers_, {end}, targets).value();
  }));
}

Var GPT::logits(Tape& tape, const Tensor& ids, const ForwardOptions& options) const {
  check_ids(config(), ids);
  nn::Pass pass = pass_of_all_tokens(tape, *layers_);
  pass.adapters = options.adapters;
  const auto finish = [&](const Var& x) {
    HeadUse use(tape, *layers_);
    return head(pass, *layers_, layers_->norm_f(pass, x));
  };
  const Var first = begin_stage(pass, *layers_, ids, /*first_position=*/0);
  const Var x =
      trunk(pass, *layers_, first, ids.extent(1), /*checkpointing=*/false, options.hook).sum();
  if (layers_->is_whole()) return finish(x);
  const Shape shape{ids.extent(0), ids.extent(1), config().vocabulary};
  return Var(end_stage(tape, *layers_, x, shape, part().activations,
                       [&](const Var& end) { return finish(end).value(); }));
}

}  // namespace zg::models
