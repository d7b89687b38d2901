#include "zerograd/models/gpt/gpt.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/models/gpt/family.h"
#include "zerograd/models/gpt/gpt_layers.h"
#include "zerograd/models/nn_parameters.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

GPTPart part_of(const Mesh& mesh, const GPTConfig& config, DType activations,
                bool sequence_parallel, int reduction_groups) {
  const int stages = mesh.shape.pipeline;
  if (config.layers < stages)
    raise<ConfigError>("gpt: pipeline: expected at most the model's {} layers, got {} stages",
                       config.layers, stages);
  const std::vector<double> costs(static_cast<size_t>(config.layers), layer_flops(config));
  const std::vector<int64_t> borders =
      balanced_stages(costs, /*first=*/0.0, head_flops(config), stages);
  const auto stage = static_cast<size_t>(mesh.stage);
  return {.mesh = &mesh,
          .first_layer = borders[stage],
          .end_layer = mesh.stage + 1 < stages ? borders[stage + 1] : -1,
          .activations = activations,
          .sequence_parallel = sequence_parallel,
          .reduction_groups = reduction_groups};
}

namespace {

constexpr float weight_stddev = 0.02f;

// Each block adds two branches to the residual stream; this keeps its variance as with one layer.
float residual_stddev(const GPTConfig& config) {
  return weight_stddev / std::sqrt(2.0f * static_cast<float>(config.layers));
}

/// Adds a table with one row per token; each tensor rank has some rows.
nn::Embedding vocabulary(nn::Module* parent, const GPTConfig& config, const char* name,
                         const ParallelStore::Options& options) {
  return {parent,
          name,
          {.tokens = config.vocabulary,
           .width = config.width,
           .stddev = weight_stddev,
           .options = options}};
}

/// Without a name it has no weight.
nn::Norm norm(nn::Module* parent, const GPTConfig& config, const char* name) {
  if (!name) return {};
  return {
      parent, name, {.width = config.width, .kind = config.norm, .epsilon = config.norm_epsilon}};
}

nn::AttentionConfig attention_of(const GPTConfig& config, const std::string& block, int64_t layer) {
  const DecoderNames& names = names_of(config.family);
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
                                .out_stddev = residual_stddev(config),
                                .names = names.attention,
                                .site = block + ".attn"};
  if (config.position == Position::rope) attention.rope = config.rope;
  if (config.window > 0 && is_local && config.local_theta > 0.0) {
    attention.rope = RopeOptions{.theta = config.local_theta};
    attention.is_local = true;
  }
  if (config.query_scalar > 0)
    attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.query_scalar)));
  if (names.attention.qkv) attention.fused = names.qkv_order;
  return attention;
}

void check_adapters(const GPTLayers& layers) {
  const ParallelStore& root = layers.root();
  if (!root.lora.enabled()) return;
  if (layers.is_whole() && root.parallel.size() == 1) return check_targets(root.lora, root.store);
  ParameterStore all;  // a part may lack layers that a target names
  const GPT whole(all, layers.config, {}, root.lora);
  for (const auto& parameter : root.store.parameters())
    if (parameter->trainable) return;
  raise<ConfigError>(
      "gpt: lora: layers {} to {} have no adapter, and nothing to train; expected some on each "
      "pipeline stage; try fewer stages or more targets",
      layers.part.first_layer, layers.part.end_layer - 1);
}

TensorParallel checked(const GPTConfig& config, const GPTPart& part) {
  if (!part.mesh) return {};
  const TensorParallel parallel{part.mesh->tensor, part.sequence_parallel, part.reduction_groups};
  const int groups = parallel.group_count();
  if (parallel.groups != 0 && ((groups & (groups - 1)) != 0 || groups % parallel.size() != 0))
    raise<ConfigError>(
        "gpt: {} reduction groups with {} tensor ranks; expected a power of two of groups that the "
        "ranks divide; try {} groups, or other tensor ranks",
        groups, parallel.size(),
        std::bit_ceil(static_cast<unsigned>(std::max(groups, parallel.size()))));
  require_divisor("gpt", "heads", config.heads, parallel);
  require_divisor("gpt", "key-value heads", kv_heads_of(config), parallel);
  if (parallel.is_grouped())
    require_divisor("gpt", "positions of the block size", config.block_size, parallel);
  if (parallel.sequence && config.block_size % parallel.size() != 0)
    raise<ConfigError>(
        "gpt: sequence parallel: expected a block size that {} tensor ranks divide, got {}",
        parallel.size(), config.block_size);
  return parallel;
}

template <class Config>
const Config& validated(const Config& config) {
  validate(config);
  return config;
}

void check_ids(const GPTConfig& config, const Tensor& ids) {
  if (ids.shape().rank() != 2 || ids.extent(1) > config.block_size)
    raise<ShapeError>("gpt: ids {} do not fit; expected [B, T] with T up to the block size {}",
                      ids.shape(), config.block_size);
}

void check_documents(const Tensor& ids, const Documents& documents) {
  if (!documents.starts != !documents.positions)
    raise<ConfigError>(
        "gpt: documents: expected both starts and positions, or neither; got {} alone",
        documents.starts ? "starts" : "positions");
  for (const auto& [name, tensor] :
       {std::pair("starts", &documents.starts), std::pair("positions", &documents.positions)})
    if (*tensor && tensor->shape() != ids.shape())
      raise<ShapeError>("gpt: documents: {} {} do not fit; expected the shape of ids, {}", name,
                        tensor->shape(), ids.shape());
}

/// [B, T, C] after this part's last block. A checkpointed block has one input, so it adds its last
/// sum itself.
nn::Residual trunk(const Tape& tape, const GPTLayers& layers, const Var& first, int64_t tokens,
                   bool checkpointing, const nn::BlockHook& hook) {
  // The tables are made once for all blocks.
  const Tape::With pass(tape, with_tables(tape.get<nn::Pass>(), layers, first, tokens));
  int64_t layer = layers.part.first_layer;
  nn::Residual x{nn::on_tape(tape, layer == 0 ? nn::hooked(tape, hook, 0, first) : first)};
  for (const nn::UnitOf<Block>& block : layers.blocks) {
    if (checkpointing)
      x.x = checkpoint(x.x, [&block](const Var& in) { return block(nn::Residual{in}).sum(); });
    else
      x = block(std::move(x));
    ++layer;
    if (hook) x = {nn::hooked(tape, hook, layer, std::exchange(x, {}).sum())};
  }
  return x;
}

/// The blocks of this rank in a pass as in training.
nn::Residual run_stage(const Tape& tape, const GPTLayers& layers, const Var& input,
                       const Tensor& ids, bool checkpointing, const nn::BlockHook& hook) {
  const Var first = layers.is_first() ? embed(tape, layers, ids, 0) : input;
  return trunk(tape, layers, first, ids.extent(1), checkpointing, hook);
}

nn::Pass pass_of(const Tape& tape, const GPTLayers& layers, const Tensor& ids,
                 const ForwardPosition& place, const Documents& documents,
                 const ForwardOptions& options) {
  check_ids(layers.config, ids);
  check_documents(ids, documents);
  const bool trains = tape.mode() == TapeMode::record;
  return {.dropout = trains ? layers.config.dropout : 0.0f,
          .place = place,
          .starts = documents.starts,
          .positions = documents.positions,
          .lora_dropout = trains ? layers.root().lora.dropout : 0.0f,
          .adapters = options.adapters};
}

Var last_hidden(const Tape& tape, const GPTLayers& layers, nn::Residual x) {
  const Tape::Use use(tape, *layers.head);
  return layers.norm_f.of_sum(std::move(x)).normed;
}

Var head_loss(const Tape& tape, const GPTLayers& layers, nn::Residual x, const Tensor& targets) {
  HeadUse use(tape, layers);
  const Var normed = layers.norm_f.of_sum(std::move(x)).normed;
  return layers.lm_head.loss(normed, targets);
}

}  // namespace

Block::Block(nn::Module* parent, const std::string& name, const GPTConfig& config, int64_t layer)
    : Module(parent, name), has_parallel_layers(config.parallel_residual) {
  const DecoderNames& names = names_of(config.family);
  norm_1 = norm(this, config, names.norm_1);
  attention = nn::Attention(this, "", attention_of(config, this->name(), layer));
  post_norm_1 = norm(this, config, names.post_norm_1);
  norm_2 = norm(this, config, names.norm_2);
  post_norm_2 = norm(this, config, names.post_norm_2);
  mlp = nn::Mlp(this, "",
                {.width = config.width,
                 .hidden = config.hidden,
                 .kind = config.mlp,
                 .bias = config.bias,
                 .stddev = weight_stddev,
                 .out_stddev = residual_stddev(config),
                 .names = names.mlp,
                 .site = this->name() + ".mlp"});
}

GPTLayers::GPTLayers(const ParallelStore& root, const GPTConfig& model, const GPTPart& piece)
    : Module(root), config(model), part(piece), has_head(piece.end_layer < 0) {
  const DecoderNames& names = names_of(config.family);
  if (has_head) part.end_layer = config.layers;
  const auto [first, end] = std::pair(part.first_layer, part.end_layer);
  if (first < 0 || end < first || end > config.layers)
    raise<ConfigError>(
        "gpt: part: layers {} to {}; expected a range of the model's {} layers, with "
        "end_layer {} for the last hidden state and -1 for the head, too",
        first, piece.end_layer, config.layers, config.layers);
  // If the head is tied, the last of several stages also has the token embedding, but nothing else
  // of this unit.
  if (is_first() || (has_head && config.tied)) {
    nn::Module place = in_unit("embedding");
    embedding = place.unit();
    wte = vocabulary(&place, config, names.tokens,
                     {.copy = is_first() ? Copy::own : Copy::mirror,
                      .has_mirror = is_first() && config.tied && !is_last()});
    if (is_first() && config.position == Position::learned)
      wpe = {&place,
             names.positions,
             {.positions = config.block_size, .width = config.width, .stddev = weight_stddev}};
    if (is_first() && config.embedding_norm)
      embedding_norm = norm(&place, config, names.embedding_norm);
    if (is_first() && row_of(config.family).scaled_embedding)
      embedding_scale = std::sqrt(static_cast<float>(config.width));
    embedding_dropout = {&place, "transformer.drop"};
  }
  for (int64_t layer = first; layer < end; ++layer) {
    nn::Module place = in_unit(fmt::format("block.{}", layer));
    blocks.emplace_back(&place, block_name(config.family, layer), config, layer);
  }
  if (is_last()) {
    nn::Module place = in_unit("head");
    head = place.unit();
    norm_f = norm(&place, config, names.norm_f);
    if (has_head)
      lm_head = config.tied ? wte : vocabulary(&place, config, names.head, {.decay = true});
  }
  check_adapters(*this);
}

GPT::GPT(ParameterStore& store, const GPTConfig& config, const GPTPart& part,
         const LoraConfig& lora)
    : layers_(std::make_unique<GPTLayers>(
          ParallelStore(store, checked(validated(config), part), validated(lora)), config, part)) {}
GPT::~GPT() = default;

const GPTConfig& GPT::config() const { return layers_->config; }
const GPTPart& GPT::part() const { return layers_->part; }
const LoraConfig& GPT::lora() const { return layers_->root().lora; }

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
  for (const Block& block : layers_->blocks) sum += numel(block.unit());
  return sum;
}

StageOutput GPT::stage_output(int64_t samples) const {
  const TensorParallel& parallel = layers_->parallel();
  const int64_t tokens = config().block_size / (parallel.sequence ? parallel.size() : 1);
  return {{samples, tokens, config().width}, layers_->part.activations};
}

Var GPT::stage(Tape& tape, const Var& input, const Tensor& ids, const Tensor& targets,
               const ForwardPosition& place, bool checkpointing, const Documents& documents,
               const ForwardOptions& options) const {
  const Tape::With pass(tape, pass_of(tape, *layers_, ids, place, documents, options));
  nn::Residual x = run_stage(tape, *layers_, input, ids, checkpointing, options.hook);
  if (!layers_->is_last()) return x.sum();
  if (layers_->has_head) return head_loss(tape, *layers_, std::move(x), targets);
  return last_hidden(tape, *layers_, std::move(x));
}

Var GPT::hidden(Tape& tape, const Tensor& ids, const ForwardPosition& place, bool checkpointing,
                const Documents& documents, const ForwardOptions& options) const {
  if (!layers_->is_first() || !layers_->is_last())
    raise<ConfigError>(
        "gpt: hidden: this rank has layers {} to {} of {}; expected a rank with all layers; on a "
        "pipeline try stage() of a model whose last part has no head (GPTPart::end_layer)",
        part().first_layer, part().end_layer, config().layers);
  const Tape::With pass(tape, pass_of(tape, *layers_, ids, place, documents, options));
  nn::Residual x = run_stage(tape, *layers_, {}, ids, checkpointing, options.hook);
  return last_hidden(tape, *layers_, std::move(x));
}

Var GPT::loss(Tape& tape, const Tensor& ids, const Tensor& targets, const ForwardPosition& place,
              bool checkpointing, const Documents& documents, const ForwardOptions& options) const {
  if (layers_->is_whole())
    return stage(tape, {}, ids, targets, place, checkpointing, documents, options);
  if (tape.mode() == TapeMode::record)
    raise<TapeError>(
        "loss: this rank has layers {} to {} of {}; expected a tape in inference mode; "
        "try stage() in run_pipeline()",
        part().first_layer, part().end_layer, config().layers);
  nn::Pass pass = pass_of(tape, *layers_, ids, place, documents, options);
  pass.all_tokens = true;
  const Tape::With with(tape, pass);
  const Var first = begin_stage(tape, *layers_, ids, /*first_position=*/0);
  const Var x =
      trunk(tape, *layers_, first, ids.extent(1), /*checkpointing=*/false, options.hook).sum();
  return tape.constant(
      end_stage(tape, *layers_, x, {}, accumulator(part().activations),
                [&](const Var& end) { return head_loss(tape, *layers_, {end}, targets).value(); }));
}

Var GPT::logits(Tape& tape, const Tensor& ids, const ForwardOptions& options) const {
  check_ids(config(), ids);
  const Tape::With pass(tape, nn::Pass{.adapters = options.adapters, .all_tokens = true});
  const auto finish = [&](const Var& x) {
    HeadUse use(tape, *layers_);
    return layers_->lm_head.logits(layers_->norm_f(x));
  };
  const Var first = begin_stage(tape, *layers_, ids, /*first_position=*/0);
  const Var x =
      trunk(tape, *layers_, first, ids.extent(1), /*checkpointing=*/false, options.hook).sum();
  if (layers_->is_whole()) return finish(x);
  const Shape shape{ids.extent(0), ids.extent(1), config().vocabulary};
  return tape.constant(end_stage(tape, *layers_, x, shape, part().activations,
                                 [&](const Var& end) { return finish(end).value(); }));
}

}  // namespace zg::models
