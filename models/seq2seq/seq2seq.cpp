#include "zerograd/models/seq2seq/seq2seq.h"

#include <cmath>
#include <optional>
#include <string>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

struct Seq2SeqBlock {
  const Unit* unit = nullptr;
  nn::Attention self;
  nn::Norm self_norm;
  nn::Attention cross;  // of decoders, as cross_norm
  nn::Norm cross_norm;
  nn::Mlp mlp;
  nn::Norm mlp_norm;
};

/// The encoder or the decoder.
struct Seq2SeqStack {
  const Parameter* positions = nullptr;
  std::optional<nn::Norm> embedding_norm;
  uint32_t embedding_site = 0;
  std::vector<Seq2SeqBlock> blocks;
  const Unit* norm_unit = nullptr;  // null without a final norm
  std::optional<nn::Norm> norm;
};

struct Seq2SeqLayers {
  Seq2SeqConfig config;
  // Passes that do not record have no sequence parallelism: every rank has all tokens.
  TensorParallel parallel;
  const Unit *embedding = nullptr, *head = nullptr;
  nn::Embedding shared;
  Seq2SeqStack encoder, decoder;
  const Parameter* logits_bias = nullptr;
};

namespace {

constexpr nn::AttentionNames attention_names = {.out = ".out_proj"};
constexpr nn::MlpNames mlp_names = {.up = ".fc1", .down = ".fc2"};

/// Adds the parameters of a model to a store.
struct DescribeSeq2Seq {
  ParallelStore store;
  const Seq2SeqConfig& config;

  const Unit& unit(const std::string& name) const { return store.store.unit(name); }

  nn::Norm norm(const Unit& unit, const std::string& name) const {
    return {store, unit, name, {.width = config.width}};
  }

  nn::Attention attention(const Unit& unit, const std::string& name, int64_t heads, bool causal,
                          int64_t layer) const {
    return {store,
            unit,
            name,
            {.width = config.width,
             .heads = heads,
             .bias = true,
             .out_bias = true,
             .causal = causal,
             .stddev = config.stddev,
             .names = attention_names},
            layer};
  }

  Seq2SeqBlock block(const std::string& stack, int64_t layer) const {
    const bool decoder = stack == "decoder";
    const int64_t heads = decoder ? config.decoder_heads : config.encoder_heads;
    const Unit& unit = this->unit(fmt::format("{}.block.{}", stack, layer));
    const std::string name = fmt::format("model.{}.layers.{}", stack, layer);
    Seq2SeqBlock block{.unit = &unit};
    block.self = attention(unit, name + ".self_attn", heads, decoder, layer);
    block.self_norm = norm(unit, name + ".self_attn_layer_norm");
    if (decoder) {
      block.cross = attention(unit, name + ".encoder_attn", heads, /*causal=*/false, layer);
      block.cross_norm = norm(unit, name + ".encoder_attn_layer_norm");
    }
    block.mlp = nn::Mlp(store, unit, name,
                        {.width = config.width,
                         .hidden = decoder ? config.decoder_hidden : config.encoder_hidden,
                         .kind = config.mlp,
                         .stddev = config.stddev,
                         .names = mlp_names,
                         .site = name + ".mlp"});
    block.mlp_norm = norm(unit, name + ".final_layer_norm");
    return block;
  }

  Seq2SeqStack stack(const Unit& embedding, const std::string& name, int64_t layers) const {
    Seq2SeqStack stack;
    stack.positions = &store.whole(embedding, "model." + name + ".embed_positions.weight",
                                   {config.positions + config.position_offset, config.width},
                                   Init::normal(config.stddev));
    if (config.embedding_norm)
      stack.embedding_norm = norm(embedding, "model." + name + ".layernorm_embedding");
    stack.embedding_site = static_cast<uint32_t>(hash_name(("model." + name + ".dropout").c_str()));
    for (int64_t layer = 0; layer < layers; ++layer) stack.blocks.push_back(block(name, layer));
    return stack;
  }

  Seq2SeqLayers layers() const {
    Seq2SeqLayers layers{.config = config, .parallel = store.parallel};
    const Unit& embedding = unit("embedding");
    layers.embedding = &embedding;
    layers.shared = nn::Embedding(
        store, embedding, "model.shared",
        {.tokens = config.vocabulary, .width = config.width, .stddev = config.stddev});
    layers.encoder = stack(embedding, "encoder", config.encoder_layers);
    if (config.pre_norm) {
      layers.encoder.norm_unit = &unit("encoder.norm");
      layers.encoder.norm = norm(*layers.encoder.norm_unit, "model.encoder.layer_norm");
    }
    layers.decoder = stack(embedding, "decoder", config.decoder_layers);
    const Unit& head = unit("head");
    layers.head = &head;
    if (config.pre_norm) {
      layers.decoder.norm_unit = &head;
      layers.decoder.norm = norm(head, "model.decoder.layer_norm");
    }
    layers.logits_bias = &store.columns(head, "final_logits_bias", {1, config.vocabulary},
                                        Init::zeros(), {.trainable = false});
    return layers;
  }
};

const Seq2SeqConfig& validated(const Seq2SeqConfig& config) {
  validate(config);
  return config;
}

const TensorParallel& checked(const Seq2SeqConfig& config, const TensorParallel& parallel) {
  require_divisor("seq2seq", "encoder heads", config.encoder_heads, parallel);
  require_divisor("seq2seq", "decoder heads", config.decoder_heads, parallel);
  if (parallel.sequence && config.positions % parallel.size() != 0)
    throw ConfigError(fmt::format(
        "seq2seq: sequence parallel: expected positions that {} tensor ranks divide, got {}",
        parallel.size(), config.positions));
  return parallel;
}

void check_ids(const char* name, const Tensor& ids, int64_t longest) {
  if (!ids || ids.shape().rank() != 2 || ids.extent(1) < 1 || ids.extent(1) > longest)
    throw ShapeError(fmt::format("seq2seq: {} {}; expected [B, T] with T from 1 to {}", name,
                                 ids ? ids.shape().str() : "absent", longest));
}

Var embed(const nn::Pass& pass, const Seq2SeqLayers& layers, const Seq2SeqStack& stack,
          const Tensor& ids, int64_t first_position) {
  const Seq2SeqConfig& config = layers.config;
  const Tape::Use use(pass.tape, *layers.embedding);
  Var x = layers.shared(pass, ids);
  if (config.scaled_embedding) x = mul(x, std::sqrt(static_cast<double>(config.width)));
  x = nn::add_positions(pass, *stack.positions, x, config.position_offset + first_position);
  if (stack.embedding_norm) x = (*stack.embedding_norm)(pass, x);
  return pass.drop(x, stack.embedding_site);
}

/// One layer; `memory` is null in an encoder.
Var run_block(const nn::Pass& pass, const Seq2SeqConfig& config, const Seq2SeqBlock& block,
              const Var& x, const nn::Memory* memory) {
  const Tape::Use use(pass.tape, *block.unit);
  if (!config.pre_norm) {
    const Var attended = block.self(pass, x);
    Var normed = block.self_norm.add(pass, x, attended).normed;
    if (memory) {
      const Var crossed = block.cross(pass, normed, *memory);
      normed = block.cross_norm.add(pass, normed, crossed).normed;
    }
    const Var mixed = block.mlp(pass, normed);
    return block.mlp_norm.add(pass, normed, mixed).normed;
  }
  const Var normed = block.self_norm(pass, x);
  Var sum = x, delta = block.self(pass, normed);
  if (memory) {
    const NormedSum next = block.cross_norm.add(pass, sum, delta);
    sum = next.sum;
    delta = block.cross(pass, next.normed, *memory);
  }
  const NormedSum last = block.mlp_norm.add(pass, sum, delta);
  return add(last.sum, block.mlp(pass, last.normed));
}

Var final_norm(const nn::Pass& pass, const Seq2SeqStack& stack, const Var& x) {
  if (!stack.norm) return x;
  const Tape::Use use(pass.tape, *stack.norm_unit);
  return (*stack.norm)(pass, x);
}

/// A pass without dropout in which every rank has all tokens.
nn::Pass pass_of_all_tokens(Tape& tape, const Seq2SeqLayers& layers) {
  return {.tape = tape, .parallel = {layers.parallel.ranks}};
}

/// A pass with the model's dropouts and sequence parallelism if the tape records.
nn::Pass pass_of(Tape& tape, const Seq2SeqLayers& layers, const ForwardPosition& place) {
  nn::Pass pass = pass_of_all_tokens(tape, layers);
  pass.place = place;
  if (tape.mode() != TapeMode::record) return pass;
  const Seq2SeqConfig& config = layers.config;
  pass.parallel = layers.parallel;
  pass.dropout = config.dropout;
  pass.attention_dropout = config.attention_dropout;
  pass.activation_dropout = config.activation_dropout;
  return pass;
}

Var run_encoder(nn::Pass pass, const Seq2SeqLayers& layers, const Tensor& source,
                const Tensor& lengths, const Seq2SeqLossOptions& options) {
  const Seq2SeqConfig& config = layers.config;
  check_ids("source", source, config.positions);
  pass.key_lengths = lengths;
  const nn::BlockHook& hook = options.encoder_hook;
  Var x = embed(pass, layers, layers.encoder, source, /*first_position=*/0);
  int64_t layer = 0;
  if (hook) x = hook(layer, x);
  for (const Seq2SeqBlock& block : layers.encoder.blocks) {
    const auto run = [&block, &config](const nn::Pass& on, std::span<const Var> inputs) {
      return run_block(on, config, block, inputs[0], nullptr);
    };
    const Var inputs[] = {x};
    x = options.checkpointing ? nn::checkpoint(pass, inputs, run) : run(pass, inputs);
    if (hook) x = hook(++layer, x);
  }
  return final_norm(pass, layers.encoder, x);
}

/// [B, T, C] after the decoder's last layer.
Var run_decoder(const nn::Pass& pass, const Seq2SeqLayers& layers, const Tensor& ids,
                const Var& memory, const Tensor& lengths, const Seq2SeqLossOptions& options) {
  const Seq2SeqConfig& config = layers.config;
  check_ids("target ids", ids, config.positions);
  const nn::BlockHook& hook = options.decoder_hook;
  Var x = embed(pass, layers, layers.decoder, ids, /*first_position=*/0);
  int64_t layer = 0;
  if (hook) x = hook(layer, x);
  for (const Seq2SeqBlock& block : layers.decoder.blocks) {
    const auto run = [&block, &config, lengths](const nn::Pass& on, std::span<const Var> inputs) {
      // The layer's gradients of the memory are summed here before they are added to those of other
      // layers, as in a checkpointed segment, so that both give the same bits.
      const nn::Memory cross{.values = reshape(inputs[1], inputs[1].shape()), .lengths = lengths};
      return run_block(on, config, block, inputs[0], &cross);
    };
    const Var inputs[] = {x, memory};
    x = options.checkpointing ? nn::checkpoint(pass, inputs, run) : run(pass, inputs);
    if (hook) x = hook(++layer, x);
  }
  return x;
}

/// This rank's columns of the logits [B, T, V] of the output of the decoder's last layer.
Var run_head(const nn::Pass& pass, const Seq2SeqLayers& layers, const Var& x) {
  const Tape::Use use(pass.tape, *layers.head);
  const Tape::Use tied(pass.tape, *layers.embedding);
  const Var normed = layers.decoder.norm ? (*layers.decoder.norm)(pass, x) : x;
  const Var weight = pass.tape.parameter(*layers.shared.weight);
  const Parameter& row = *layers.logits_bias;
  const Var bias = reshape(pass.tape.parameter(row), Shape{row.shape[1]});
  return column_parallel_linear(normed, weight, bias, pass.parallel);
}

Var whole_logits(const nn::Pass& pass, const Seq2SeqLayers& layers, const Var& own) {
  return join_vocabulary(own, layers.config.vocabulary, pass.parallel);
}

/// With sequence parallelism tokens are divided among the ranks.
void check_divisible(const nn::Pass& pass, const char* name, const Tensor& ids) {
  if (pass.parallel.sequence && ids && ids.shape().rank() == 2 &&
      ids.extent(1) % pass.parallel.size() != 0)
    throw ShapeError(fmt::format(
        "seq2seq: sequence parallel: {} {}; expected a number of tokens that {} tensor ranks "
        "divide; try more padding",
        name, ids.shape(), pass.parallel.size()));
}

/// [B, T, C] after the decoder's last layer.
Var run_all(const nn::Pass& pass, const Seq2SeqLayers& layers, const Seq2SeqBatch& batch,
            const Seq2SeqLossOptions& options) {
  check_divisible(pass, "source", batch.source);
  check_divisible(pass, "labels", batch.labels);
  const Var memory = run_encoder(pass, layers, batch.source, batch.source_lengths, options);
  const Tensor ids =
      batch.decoder_ids ? batch.decoder_ids : shifted_right(batch.labels, layers.config.tokens);
  return run_decoder(pass, layers, ids, memory, batch.source_lengths, options);
}

}  // namespace

Seq2Seq::Seq2Seq(ParameterStore& store, const Seq2SeqConfig& config, const TensorParallel& parallel)
    : layers_(std::make_unique<Seq2SeqLayers>(
          DescribeSeq2Seq{{store, checked(validated(config), parallel)}, config}.layers())) {}
Seq2Seq::~Seq2Seq() = default;

const Seq2SeqConfig& Seq2Seq::config() const { return layers_->config; }

Var Seq2Seq::loss(Tape& tape, const Seq2SeqBatch& batch, const ForwardPosition& place,
                  const Seq2SeqLossOptions& options) const {
  check_ids("labels", batch.labels, config().positions);
  if (batch.source && batch.source.extent(0) != batch.labels.extent(0))
    throw ShapeError(fmt::format("seq2seq: labels {} of sources {}; expected as many rows",
                                 batch.labels.shape(), batch.source.shape()));
  const nn::Pass pass = pass_of(tape, *layers_, place);
  const Var own = run_head(pass, *layers_, run_all(pass, *layers_, batch, options));
  return parallel_cross_entropy(
      own, batch.labels, config().vocabulary, pass.parallel,
      {.ignore_index = ignored_label, .label_smoothing = options.label_smoothing});
}

Var Seq2Seq::hidden(Tape& tape, const Seq2SeqBatch& batch, const ForwardPosition& place,
                    const Seq2SeqLossOptions& options) const {
  if (!batch.decoder_ids) check_ids("labels", batch.labels, config().positions);
  const nn::Pass pass = pass_of(tape, *layers_, place);
  const Var x = run_all(pass, *layers_, batch, options);
  if (!layers_->decoder.norm) return x;
  const Tape::Use use(tape, *layers_->head);
  return (*layers_->decoder.norm)(pass, x);
}

Var Seq2Seq::logits(Tape& tape, const Seq2SeqBatch& batch) const {
  if (!batch.decoder_ids) check_ids("labels", batch.labels, config().positions);
  const nn::Pass pass = pass_of_all_tokens(tape, *layers_);
  const Var own = run_head(pass, *layers_, run_all(pass, *layers_, batch, {}));
  return whole_logits(pass, *layers_, own);
}

Var Seq2Seq::encode(Tape& tape, const Tensor& source, const Tensor& source_lengths) const {
  const nn::Pass pass = pass_of_all_tokens(tape, *layers_);
  return run_encoder(pass, *layers_, source, source_lengths, {});
}

Tensor Seq2Seq::next_logits(Tape& tape, const Tensor& ids, Seq2SeqCache& cache) const {
  if (tape.mode() != TapeMode::inference)
    throw TapeError("next_logits: expected a tape in inference mode; a cache has no gradients");
  check_ids("target ids", ids, cache.capacity() - cache.length());
  const int64_t R = ids.extent(0), T = ids.extent(1);
  if (R != cache.rows())
    throw ConfigError(fmt::format("seq2seq: ids of {} rows for a cache of {} rows; try reorder()",
                                  R, cache.rows()));
  nn::Pass pass = pass_of_all_tokens(tape, *layers_);
  pass.cache = &cache.tokens_;
  const nn::Memory memory{.cache = &cache.memory_};
  Var x = embed(pass, *layers_, layers_->decoder, ids, cache.length());
  for (const Seq2SeqBlock& block : layers_->decoder.blocks)
    x = run_block(pass, config(), block, x, &memory);
  cache.tokens_.advance(T);
  const Var own = run_head(pass, *layers_, slice(x, 1, T - 1, T));
  return whole_logits(pass, *layers_, own).value().view({R, config().vocabulary});
}

}  // namespace zg::models
