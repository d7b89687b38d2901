#include "zerograd/models/seq2seq/seq2seq.h"

#include <cmath>
#include <string>

#include "zerograd/models/nn_parameters.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {

namespace {

constexpr nn::AttentionNames attention_names = {.out = "out_proj"};
constexpr nn::MlpNames mlp_names = {.up = "fc1", .down = "fc2"};

}  // namespace

struct Seq2SeqBlock : nn::Module {
  nn::Attention self;
  nn::Norm self_norm;
  nn::Attention cross;  // of decoders, as cross_norm
  nn::Norm cross_norm;
  nn::Mlp mlp;
  nn::Norm mlp_norm;
  bool pre_norm = false;

  Seq2SeqBlock(nn::Module* parent, const std::string& name, const Seq2SeqConfig& config,
               bool is_decoder)
      : Module(parent, name), pre_norm(config.pre_norm) {
    const int64_t heads = is_decoder ? config.decoder_heads : config.encoder_heads;
    const auto attention = [&](const char* part, bool causal) {
      return nn::Attention(this, part,
                           {.width = config.width,
                            .heads = heads,
                            .bias = true,
                            .out_bias = true,
                            .causal = causal,
                            .stddev = config.stddev,
                            .names = attention_names});
    };
    const nn::NormConfig norm = {.width = config.width};
    self = attention("self_attn", /*causal=*/is_decoder);
    self_norm = {this, "self_attn_layer_norm", norm};
    if (is_decoder) {
      cross = attention("encoder_attn", /*causal=*/false);
      cross_norm = {this, "encoder_attn_layer_norm", norm};
    }
    mlp = nn::Mlp(this, "",
                  {.width = config.width,
                   .hidden = is_decoder ? config.decoder_hidden : config.encoder_hidden,
                   .kind = config.mlp,
                   .stddev = config.stddev,
                   .names = mlp_names,
                   .site = this->name() + ".mlp"});
    mlp_norm = {this, "final_layer_norm", norm};
  }

  /// One layer; `memory` is null in an encoder.
  Var operator()(const Var& x, const nn::Memory* memory) const {
    if (!pre_norm) {
      const Var attended = self(x);
      Var normed = self_norm.add(x, attended).normed;
      if (memory) {
        const Var crossed = cross(normed, *memory);
        normed = cross_norm.add(normed, crossed).normed;
      }
      const Var mixed = mlp(normed);
      return mlp_norm.add(normed, mixed).normed;
    }
    const Var normed = self_norm(x);
    Var sum = x, delta = self(normed);
    if (memory) {
      const NormedSum next = cross_norm.add(sum, delta);
      sum = next.sum;
      delta = cross(next.normed, *memory);
    }
    const NormedSum last = mlp_norm.add(sum, delta);
    return zg::add(last.sum, mlp(last.normed));
  }
};

/// The encoder or the decoder.
struct Seq2SeqStack : nn::Module {
  nn::Positions positions;
  nn::Norm embedding_norm;  // without a weight where the model has none, as `norm`
  nn::Dropout dropout;
  std::vector<nn::UnitOf<Seq2SeqBlock>> blocks;
  nn::Norm norm;

  Seq2SeqStack() = default;
  /// `embedding`: the parent of what belongs to the embedding's unit.
  Seq2SeqStack(nn::Module* parent, nn::Module* embedding, const std::string& stack,
               const Seq2SeqConfig& config)
      : Module(parent, "model." + stack) {
    const std::string& name = this->name();
    positions = {embedding,
                 name + ".embed_positions",
                 {.positions = config.positions + config.position_offset,
                  .width = config.width,
                  .stddev = config.stddev}};
    if (config.embedding_norm)
      embedding_norm = {embedding, name + ".layernorm_embedding", {.width = config.width}};
    dropout = {embedding, name + ".dropout"};
    const bool is_decoder = stack == "decoder";
    const int64_t layers = is_decoder ? config.decoder_layers : config.encoder_layers;
    for (int64_t layer = 0; layer < layers; ++layer) {
      nn::Module place = in_unit(fmt::format("{}.block.{}", stack, layer));
      blocks.emplace_back(&place, fmt::format("layers.{}", layer), config, is_decoder);
    }
  }
};

struct Seq2SeqLayers : nn::Module {
  Seq2SeqConfig config;
  const Unit *embedding = nullptr, *head = nullptr;
  nn::Embedding shared;
  Seq2SeqStack encoder, decoder;
  const Parameter* logits_bias = nullptr;

  Seq2SeqLayers(const ParallelStore& root, const Seq2SeqConfig& model)
      : Module(root), config(model) {
    nn::Module place = in_unit("embedding");
    embedding = place.unit();
    shared = {&place,
              "model.shared",
              {.tokens = config.vocabulary, .width = config.width, .stddev = config.stddev}};
    encoder = {this, &place, "encoder", config};
    if (config.pre_norm) {
      nn::Module last = in_unit("encoder.norm");
      encoder.norm = {&last, "model.encoder.layer_norm", {.width = config.width}};
    }
    decoder = {this, &place, "decoder", config};
    nn::Module last = in_unit("head");
    head = last.unit();
    if (config.pre_norm)
      decoder.norm = {&last, "model.decoder.layer_norm", {.width = config.width}};
    logits_bias = &root.columns(*head, "final_logits_bias", {1, config.vocabulary}, Init::zeros(),
                                {.trainable = false});
  }
};

namespace {

const Seq2SeqConfig& validated(const Seq2SeqConfig& config) {
  validate(config);
  return config;
}

const TensorParallel& checked(const Seq2SeqConfig& config, const TensorParallel& parallel) {
  require_divisor("seq2seq", "encoder heads", config.encoder_heads, parallel);
  require_divisor("seq2seq", "decoder heads", config.decoder_heads, parallel);
  if (parallel.sequence && config.positions % parallel.size() != 0)
    raise<ConfigError>(
        "seq2seq: sequence parallel: expected positions that {} tensor ranks divide, got {}",
        parallel.size(), config.positions);
  return parallel;
}

void check_ids(const char* name, const Tensor& ids, int64_t longest) {
  if (!ids || ids.shape().rank() != 2 || ids.extent(1) < 1 || ids.extent(1) > longest)
    raise<ShapeError>("seq2seq: {} {}; expected [B, T] with T from 1 to {}", name,
                      ids ? ids.shape().str() : "absent", longest);
}

Var embed(const Tape& tape, const Seq2SeqLayers& layers, const Seq2SeqStack& stack,
          const Tensor& ids, int64_t first_position) {
  const Seq2SeqConfig& config = layers.config;
  const Tape::Use use(tape, *layers.embedding);
  Var x = layers.shared(tape.constant(ids));
  if (config.scaled_embedding) x = mul(x, std::sqrt(static_cast<double>(config.width)));
  x = stack.positions(x, config.position_offset + first_position);
  if (stack.embedding_norm.weight) x = stack.embedding_norm(x);
  return stack.dropout(x);
}

/// A pass with the model's dropouts and sequence parallelism if the tape records; otherwise without
/// dropout, and every rank has all tokens.
nn::Pass pass_of(const Tape& tape, const Seq2SeqConfig& config, const ForwardPosition& place) {
  if (tape.mode() != TapeMode::record) return {.place = place, .all_tokens = true};
  return {.dropout = config.dropout,
          .place = place,
          .attention_dropout = config.attention_dropout,
          .activation_dropout = config.activation_dropout};
}

Var run_encoder(const Tape& tape, const Seq2SeqLayers& layers, const Tensor& source,
                const Tensor& lengths, const Seq2SeqLossOptions& options) {
  check_ids("source", source, layers.config.positions);
  nn::Pass pass = tape.get<nn::Pass>();
  pass.key_lengths = lengths;
  const Tape::With with(tape, pass);
  Var x = embed(tape, layers, layers.encoder, source, /*first_position=*/0);
  int64_t layer = 0;
  const nn::BlockHook& hook = options.encoder_hook;
  x = nn::hooked(tape, hook, layer, x);
  for (const nn::UnitOf<Seq2SeqBlock>& block : layers.encoder.blocks) {
    const auto run = [&block](const Var& input) { return block(input, nullptr); };
    x = options.checkpointing ? checkpoint(x, run) : run(x);
    x = nn::hooked(tape, hook, ++layer, x);
  }
  return layers.encoder.norm.weight ? layers.encoder.norm(x) : x;
}

/// [B, T, C] after the decoder's last layer.
Var run_decoder(Tape& tape, const Seq2SeqLayers& layers, const Tensor& ids, const Var& memory,
                const Tensor& lengths, const Seq2SeqLossOptions& options) {
  check_ids("target ids", ids, layers.config.positions);
  Var x = embed(tape, layers, layers.decoder, ids, /*first_position=*/0);
  int64_t layer = 0;
  const nn::BlockHook& hook = options.decoder_hook;
  x = nn::hooked(tape, hook, layer, x);
  for (const nn::UnitOf<Seq2SeqBlock>& block : layers.decoder.blocks) {
    const auto run = [&block, lengths](Tape&, std::span<const Var> inputs) {
      // The layer's gradients of the memory are summed here before they are added to those of other
      // layers, as in a checkpointed segment, so that both give the same bits.
      const nn::Memory cross{.values = reshape(inputs[1], inputs[1].shape()), .lengths = lengths};
      return block(inputs[0], &cross);
    };
    const Var inputs[] = {x, memory};
    x = options.checkpointing ? checkpoint(tape, inputs, run) : run(tape, inputs);
    x = nn::hooked(tape, hook, ++layer, x);
  }
  return x;
}

/// This rank's columns of the logits [B, T, V] of the output of the decoder's last layer.
Var run_head(const Tape& tape, const Seq2SeqLayers& layers, const Var& x) {
  const Tape::Use use(tape, *layers.head);
  const Tape::Use tied(tape, *layers.embedding);
  const Var normed = layers.decoder.norm.weight ? layers.decoder.norm(x) : x;
  const Var weight = tape.parameter(*layers.shared.weight);
  const Parameter& row = *layers.logits_bias;
  const Var bias = reshape(tape.parameter(row), Shape{row.shape[1]});
  return column_parallel_linear(normed, weight, bias, tape.get<nn::Pass>().parallel_of(layers));
}

Var whole_logits(const Seq2SeqLayers& layers, const Var& own) {
  return join_vocabulary(own, layers.config.vocabulary, layers.parallel());
}

/// With sequence parallelism tokens are divided among the ranks.
void check_divisible(const TensorParallel& parallel, const char* name, const Tensor& ids) {
  if (parallel.sequence && ids && ids.shape().rank() == 2 && ids.extent(1) % parallel.size() != 0)
    raise<ShapeError>(
        "seq2seq: sequence parallel: {} {}; expected a number of tokens that {} tensor ranks "
        "divide; try more padding",
        name, ids.shape(), parallel.size());
}

/// [B, T, C] after the decoder's last layer.
Var run_all(Tape& tape, const Seq2SeqLayers& layers, const Seq2SeqBatch& batch,
            const Seq2SeqLossOptions& options) {
  const TensorParallel parallel = tape.get<nn::Pass>().parallel_of(layers);
  check_divisible(parallel, "source", batch.source);
  check_divisible(parallel, "labels", batch.labels);
  const Var memory = run_encoder(tape, layers, batch.source, batch.source_lengths, options);
  const Tensor ids =
      batch.decoder_ids ? batch.decoder_ids : shifted_right(batch.labels, layers.config.tokens);
  return run_decoder(tape, layers, ids, memory, batch.source_lengths, options);
}

}  // namespace

Seq2Seq::Seq2Seq(ParameterStore& store, const Seq2SeqConfig& config, const TensorParallel& parallel)
    : layers_(std::make_unique<Seq2SeqLayers>(
          ParallelStore(store, checked(validated(config), parallel)), config)) {}
Seq2Seq::~Seq2Seq() = default;

const Seq2SeqConfig& Seq2Seq::config() const { return layers_->config; }

Var Seq2Seq::loss(Tape& tape, const Seq2SeqBatch& batch, const ForwardPosition& place,
                  const Seq2SeqLossOptions& options) const {
  check_ids("labels", batch.labels, config().positions);
  if (batch.source && batch.source.extent(0) != batch.labels.extent(0))
    raise<ShapeError>("seq2seq: labels {} of sources {}; expected as many rows",
                      batch.labels.shape(), batch.source.shape());
  const Tape::With pass(tape, pass_of(tape, config(), place));
  const Var own = run_head(tape, *layers_, run_all(tape, *layers_, batch, options));
  return parallel_cross_entropy(
      own, batch.labels, config().vocabulary, layers_->parallel(),
      {.ignore_index = ignored_label, .label_smoothing = options.label_smoothing});
}

Var Seq2Seq::hidden(Tape& tape, const Seq2SeqBatch& batch, const ForwardPosition& place,
                    const Seq2SeqLossOptions& options) const {
  if (!batch.decoder_ids) check_ids("labels", batch.labels, config().positions);
  const Tape::With pass(tape, pass_of(tape, config(), place));
  const Var x = run_all(tape, *layers_, batch, options);
  return layers_->decoder.norm.weight ? layers_->decoder.norm(x) : x;
}

Var Seq2Seq::logits(Tape& tape, const Seq2SeqBatch& batch) const {
  if (!batch.decoder_ids) check_ids("labels", batch.labels, config().positions);
  const Tape::With pass(tape, nn::Pass{.all_tokens = true});
  const Var own = run_head(tape, *layers_, run_all(tape, *layers_, batch, {}));
  return whole_logits(*layers_, own);
}

Var Seq2Seq::encode(Tape& tape, const Tensor& source, const Tensor& source_lengths) const {
  const Tape::With pass(tape, nn::Pass{.all_tokens = true});
  return run_encoder(tape, *layers_, source, source_lengths, {});
}

Tensor Seq2Seq::next_logits(Tape& tape, const Tensor& ids, Seq2SeqCache& cache) const {
  if (tape.mode() != TapeMode::inference)
    throw TapeError("next_logits: expected a tape in inference mode; a cache has no gradients");
  check_ids("target ids", ids, cache.capacity() - cache.length());
  const int64_t R = ids.extent(0), T = ids.extent(1);
  if (R != cache.rows())
    raise<ConfigError>("seq2seq: ids of {} rows for a cache of {} rows; try reorder()", R,
                       cache.rows());
  const Tape::With pass(tape, nn::Pass{.cache = &cache.tokens_, .all_tokens = true});
  const nn::Memory memory{.cache = &cache.memory_};
  Var x = embed(tape, *layers_, layers_->decoder, ids, cache.length());
  for (const nn::UnitOf<Seq2SeqBlock>& block : layers_->decoder.blocks) x = block(x, &memory);
  cache.tokens_.advance(T);
  const Var own = run_head(tape, *layers_, slice(x, 1, T - 1, T));
  return whole_logits(*layers_, own).value().view({R, config().vocabulary});
}

}  // namespace zg::models
