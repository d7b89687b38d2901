#include "zerograd/models/nn.h"

#include <cmath>

#include "zerograd/autograd/collective.h"
#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::nn {
namespace {

/// The number of a dropout's random stream, from the layer's name and a suffix.
uint32_t site_of(const std::string& name, const char* suffix) {
  return static_cast<uint32_t>(hash_name((name + suffix).c_str()));
}

/// The parameter of a layer. Throws ConfigError if the layer was default-constructed.
const Parameter& require_parameter(const char* layer, const Parameter* parameter) {
  if (parameter) return *parameter;
  throw ConfigError(fmt::format(
      "{}: the layer has no parameters, because it was default-constructed; expected a layer that "
      "was constructed with a ParameterStore; assign such a layer to it before the first call",
      layer));
}

void check_size(const char* layer, const std::string& name, const char* field, int64_t size) {
  if (size < 1)
    throw ConfigError(
        fmt::format("{} '{}': {} is {}; expected 1 or more", layer, name, field, size));
}

/// The value of a parameter that every tensor rank has whole and reads outside the column- and
/// row-parallel layers (TensorParallel::shared).
Var shared(const Pass& pass, const Parameter* parameter) {
  if (!parameter) return {};
  const Var values[] = {pass.tape.parameter(*parameter)};
  return pass.parallel.shared(values)[0];
}

Var value_of(const Pass& pass, const Parameter* parameter) {
  return parameter ? pass.tape.parameter(*parameter) : Var();
}

}  // namespace

// --- passes ---

KeyValueCache::KeyValueCache(int64_t layers, int64_t capacity)
    : layers_(static_cast<size_t>(layers)), capacity_(capacity) {}

void KeyValueCache::truncate(int64_t length) {
  if (length < 0 || length > length_)
    throw ConfigError(fmt::format(
        "key_value_cache: truncate to {} positions; expected 0 to {}, the positions that it holds",
        length, length_));
  length_ = length;
}

void KeyValueCache::advance(int64_t tokens) {
  if (tokens < 0 || tokens > capacity_ - length_)
    throw ConfigError(
        fmt::format("key_value_cache: advance by {} positions; the cache holds {} and has room for "
                    "{} in all; expected 0 to {}",
                    tokens, length_, capacity_, capacity_ - length_));
  length_ += tokens;
}

KeyValueCache::Layer& KeyValueCache::layer(int64_t index, int64_t rows, int64_t tokens) {
  const auto count = static_cast<int64_t>(layers_.size());
  if (index < 0 || index >= count)
    throw ConfigError(fmt::format(
        "key_value_cache: attention layer {} of a cache for {} layers; expected 0 to {}; give the "
        "cache the model's number of layers, and each attention layer its index",
        index, count, count - 1));
  if (tokens > capacity_ - length_)
    throw ConfigError(
        fmt::format("key_value_cache: {} more tokens, after {} of {} positions; expected at most "
                    "{} more; make the cache larger, or truncate() it",
                    tokens, length_, capacity_, capacity_ - length_));
  Layer& found = layers_[static_cast<size_t>(index)];
  if (found.keys && found.keys.extent(0) != rows)
    throw ConfigError(
        fmt::format("key_value_cache: a pass with {} rows after passes with {} rows; expected "
                    "the same number; make a new cache for another batch size",
                    rows, found.keys.extent(0)));
  return found;
}

int64_t KeyValueCache::batch() const {
  for (const Layer& layer : layers_)
    if (layer.keys) return layer.keys.extent(0);
  return 0;
}

DropoutKey Pass::key(uint32_t site) const {
  return {.seed = place.seed,
          .step = static_cast<uint32_t>(place.step),
          .sample = static_cast<uint32_t>(place.first_sample),
          .site = site};
}

DropoutKey Pass::key_of_rank(uint32_t site) const {
  return key(site + static_cast<uint32_t>(parallel.rank()));
}

Var Pass::drop(const Var& x, uint32_t site) const {
  return zg::dropout(x, dropout, parallel.sequence ? key_of_rank(site) : key(site));
}

Tensor alibi_slopes_of(int64_t heads, const TensorParallel& parallel, const Var& x) {
  const std::vector<float> all = alibi_slopes(heads);
  const auto [begin, count] = models::rows_of_rank(heads, parallel);
  const std::vector<float> slopes(all.begin() + begin, all.begin() + begin + count);
  if (accumulator(x.dtype()) == DType::f32) return Tensor::from(slopes, {count}, x.device());
  const std::vector<double> wide(slopes.begin(), slopes.end());
  return Tensor::from(wide, {count}, x.device());
}

// --- linear layers and norms ---

Linear::Linear(const ParallelStore& store, const Unit& unit, const std::string& name,
               const LinearConfig& config)
    : split(config.split) {
  check_size("linear", name, "in", config.in);
  check_size("linear", name, "out", config.out);
  const Shape shape{config.out, config.in};
  const Init init = Init::normal(config.stddev);
  const std::string weight_name = name + ".weight", bias_name = name + ".bias";
  const ParameterStore::Options options = {.decay = true, .hidden_matrix = config.hidden};
  weight = split == Split::out ? &store.rows(unit, weight_name, shape, init, options, config.blocks)
           : split == Split::in ? &store.columns(unit, weight_name, shape, init, options)
                                : &store.whole(unit, weight_name, shape, init, options);
  if (!config.bias) return;
  bias = split == Split::out
             ? &store.rows(unit, bias_name, {config.out}, Init::zeros(), {}, config.blocks)
             : &store.whole(unit, bias_name, {config.out}, Init::zeros());
}

Var Linear::operator()(const Pass& pass, const Var& x) const {
  const Var w = pass.tape.parameter(require_parameter("linear", weight));
  if (split == Split::in)
    return models::row_parallel_linear(x, w, shared(pass, bias), pass.parallel);
  const Var b = split == Split::out ? value_of(pass, bias) : shared(pass, bias);
  if (split == Split::out) return models::column_parallel_linear(x, w, b, pass.parallel);
  return linear(x, w, b);
}

Embedding::Embedding(const ParallelStore& store, const Unit& unit, const std::string& name,
                     const EmbeddingConfig& config)
    : tokens(config.tokens) {
  check_size("embedding", name, "tokens", config.tokens);
  check_size("embedding", name, "width", config.width);
  weight = &store.rows(unit, name + ".weight", {config.tokens, config.width},
                       Init::normal(config.stddev), config.options);
}

Var Embedding::operator()(const Pass& pass, const Tensor& ids, const Var& positions,
                          int64_t first_position) const {
  const Var table = pass.tape.parameter(require_parameter("embedding", weight));
  if (pass.parallel.size() == 1) return embedding(ids, table, positions, first_position);
  if (positions)
    throw ConfigError(
        fmt::format("embedding: got `positions` with {} tensor ranks; expected one tensor rank; "
                    "add the position embedding to the result instead",
                    pass.parallel.size()));
  return models::parallel_embedding(ids, table, tokens, pass.parallel);
}

Var Embedding::logits(const Pass& pass, const Var& x) const {
  const Var table = pass.tape.parameter(require_parameter("embedding", weight));
  const Var own = models::column_parallel_linear(x, table, /*bias=*/{}, pass.parallel);
  return models::join_vocabulary(own, tokens, pass.parallel);
}

Var Embedding::loss(const Pass& pass, const Var& x, const Tensor& targets,
                    int64_t ignore_index) const {
  const Var table = pass.tape.parameter(require_parameter("embedding", weight));
  return models::parallel_projection_cross_entropy(x, table, targets, tokens, pass.parallel,
                                                   ignore_index);
}

Norm::Norm(const ParallelStore& store, const Unit& unit, const std::string& name,
           const NormConfig& config)
    : kind(config.kind), epsilon(config.epsilon) {
  check_size("norm", name, "width", config.width);
  weight = &store.whole(unit, name + ".weight", {config.width}, Init::ones());
  if (kind == NormKind::layer && config.bias)
    bias = &store.whole(unit, name + ".bias", {config.width}, Init::zeros());
}

std::vector<Var> Norm::parameters(const Pass& pass) const {
  std::vector<Var> values = {pass.tape.parameter(require_parameter("norm", weight))};
  if (bias) values.push_back(pass.tape.parameter(*bias));
  values = pass.parallel.shared(values);
  values.resize(2);
  return values;
}

Var Norm::operator()(const Pass& pass, const Var& x) const {
  const std::vector<Var> p = parameters(pass);
  return kind == NormKind::rms ? rms_norm(x, p[0], epsilon) : layer_norm(x, p[0], p[1], epsilon);
}

NormedSum Norm::add(const Pass& pass, const Var& x, const Var& delta) const {
  const std::vector<Var> p = parameters(pass);
  if (kind == NormKind::layer) return add_layer_norm(x, delta, p[0], p[1], epsilon);
  const Var sum = zg::add(x, delta);
  return {sum, rms_norm(sum, p[0], epsilon)};
}

// --- attention ---

/// Queries, keys and values of a call. q, k and v are one tensor [B, T, 3C] (fused), or three.
struct Attention::Heads {
  Var q, k, v;
  int64_t heads = 0, kv_heads = 0;  ///< of this rank
  int64_t head_size = 0;
};

namespace {

void check_divides(const char* field, int64_t n, int64_t by, const char* what) {
  if (n < 1 || by < 1 || n % by != 0)
    throw ConfigError(
        fmt::format("attention: {}: expected a multiple of {} ({}), got {}", field, by, what, n));
}

AttentionConfig resolved(AttentionConfig config, const TensorParallel& parallel) {
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.head_size == 0) {
    check_divides("width", config.width, config.heads, "the number of heads");
    config.head_size = config.width / config.heads;
  }
  check_divides("heads", config.heads, config.kv_heads, "the number of key-value heads");
  check_divides("heads", config.heads, parallel.size(), "the number of tensor ranks");
  check_divides("kv_heads", config.kv_heads, parallel.size(), "the number of tensor ranks");
  if (config.fused && config.kv_heads != config.heads)
    throw ConfigError(
        fmt::format("attention: fused: expected as many key-value heads as heads, {}, got {}",
                    config.heads, config.kv_heads));
  if (config.fused && (config.rope || config.query_key_norm))
    throw ConfigError(
        "attention: fused: set together with rope or query_key_norm; expected separate matrices "
        "for queries, keys and values; leave fused unset");
  if (config.rope) validate(*config.rope);
  return config;
}

/// The number of elements of a head that the rotary position embedding rotates.
int64_t rotated_of(const AttentionConfig& config) {
  return static_cast<int64_t>(static_cast<double>(config.head_size) * config.rotated_share) / 2 * 2;
}

}  // namespace

Attention::Attention(const ParallelStore& store, const Unit& unit, const std::string& name,
                     const AttentionConfig& config, int64_t layer)
    : config_(resolved(config, store.parallel)), layer_(layer) {
  check_size("attention", name, "width", config.width);
  const AttentionConfig& c = config_;
  const int64_t queries = c.heads * c.head_size, keys = c.kv_heads * c.head_size;
  const auto in = [&](const char* part, int64_t out, int64_t blocks = 1) {
    return Linear(store, unit, name + part,
                  {.in = c.width,
                   .out = out,
                   .bias = c.bias,
                   .split = Split::out,
                   .stddev = c.stddev,
                   .blocks = blocks});
  };
  if (c.fused) {
    qkv_ = in(c.names.qkv, 3 * queries, *c.fused == QKVOrder::by_part ? 3 : 1);
  } else {
    q_ = in(c.names.q, queries);
    k_ = in(c.names.k, keys);
    v_ = in(c.names.v, keys);
  }
  if (c.query_key_norm) {
    const NormConfig norm{.width = c.head_size, .kind = NormKind::rms, .epsilon = c.norm_epsilon};
    q_norm_ = Norm(store, unit, name + c.names.q_norm, norm);
    k_norm_ = Norm(store, unit, name + c.names.k_norm, norm);
  }
  out_ = Linear(store, unit, name + c.names.out,
                {.in = queries,
                 .out = c.width,
                 .bias = c.out_bias,
                 .split = Split::in,
                 .stddev = c.out_stddev > 0.0f ? c.out_stddev : c.stddev});
  const std::string& site = c.site.empty() ? name : c.site;
  weights_site_ = site_of(site, ".attn_dropout");
  out_site_ = site_of(site, ".resid_dropout");
}

Tensor Attention::rope_table(int64_t positions, DType dtype, const Device& device) const {
  if (!config_.rope) return {};
  return zg::rope_table(*config_.rope, rotated_of(config_), positions, accumulator(dtype), device);
}

/// Applies the rotary position embedding to queries or keys [B, T, heads * D].
Var Attention::turned(const Pass& pass, const Var& x, int64_t heads) const {
  const int64_t first = pass.cache ? pass.cache->length() : 0, T = x.shape()[1];
  const Tensor table =
      pass.rope_table ? pass.rope_table : rope_table(first + T, x.dtype(), x.device());
  return pass.positions ? rope(x, heads, table, pass.positions) : rope(x, heads, table, first);
}

Attention::Heads Attention::project(const Pass& pass, const Var& x) const {
  const int64_t ranks = pass.parallel.size();
  Heads result{.heads = config_.heads / ranks,
               .kv_heads = config_.kv_heads / ranks,
               .head_size = config_.head_size};
  if (config_.fused) {
    result.q = result.k = result.v = qkv_(pass, x);
    return result;
  }
  // The three products have the same input: gather it from the tensor ranks once.
  const Var whole = pass.parallel.enter(x);
  const auto product = [&](const Linear& layer) {
    const Var weight = pass.tape.parameter(*layer.weight);
    return linear(whole, weight, value_of(pass, layer.bias));
  };
  result.q = product(q_);
  result.k = product(k_);
  result.v = product(v_);
  if (config_.query_key_norm) {
    // Each rank reads the norms' weights for its own heads, so backward sums their gradients.
    const auto normed = [&](const Norm& norm, const Var& y, int64_t heads) {
      Var weight = pass.tape.parameter(*norm.weight);
      if (ranks > 1) weight = copy_to_ranks(weight, *pass.parallel.ranks);
      const Shape shape = y.shape();
      const Var rows = reshape(y, Shape{shape[0], shape[1], heads, result.head_size});
      const Var done = rms_norm(rows, weight, norm.epsilon);
      return reshape(done, shape);
    };
    result.q = normed(q_norm_, result.q, result.heads);
    result.k = normed(k_norm_, result.k, result.kv_heads);
  }
  if (config_.rope) {
    result.q = turned(pass, result.q, result.heads);
    result.k = turned(pass, result.k, result.kv_heads);
  }
  return result;
}

Var Attention::attend(const Pass& pass, const Heads& heads) const {
  const AttentionOptions options{.causal = config_.causal,
                                 .dropout = pass.dropout,
                                 .key = pass.key_of_rank(weights_site_),
                                 .alibi_slopes = pass.alibi_slopes,
                                 .order = config_.fused.value_or(QKVOrder::by_part),
                                 .window = config_.window,
                                 .starts = pass.starts};
  if (config_.fused) return attention(heads.q, static_cast<int>(heads.heads), options);
  return attention(heads.q, heads.k, heads.v, static_cast<int>(heads.heads), options);
}

/// Appends the keys and values to the cache and attends to all of it. Does not use pass.dropout.
Tensor Attention::attend_cached(const Pass& pass, const Heads& heads) const {
  if (!config_.causal || pass.starts)
    throw ConfigError(fmt::format(
        "attention: a pass with a key-value cache takes one text from left to right; expected "
        "causal true and no starts, got {}",
        config_.causal ? "starts" : "causal false"));
  KeyValueCache& cache = *pass.cache;
  const Tensor q = heads.q.value();
  const int64_t B = q.extent(0), T = q.extent(1), D = heads.head_size, C = heads.heads * D,
                keys = heads.kv_heads * D, length = cache.length();
  const HeadLayout cached{.batch = cache.capacity() * keys, .head = D, .token = keys};
  AttentionShape shape = {.B = B,
                          .H = heads.heads,
                          .T = T,
                          .keys = length + T,
                          .offset = length,
                          .D = D,
                          .q = {.batch = T * C, .head = D, .token = C},
                          .k = cached,
                          .v = cached,
                          .out = {.batch = T * C, .head = D, .token = C},
                          .kv_heads = heads.kv_heads,
                          .window = config_.window};
  if (config_.fused) shape.q = qkv_layout(shape, *config_.fused, 0);
  KeyValueCache::Layer& layer = cache.layer(layer_, B, T);
  Stream& stream = pass.tape.stream();
  const auto append = [&](Tensor& to, const Var& from, int64_t part) {
    const Tensor values = from.value();
    if (!to) to = Tensor::empty({B, cache.capacity(), keys}, values.dtype(), values.device());
    const HeadLayout layout = config_.fused
                                  ? qkv_layout(shape, *config_.fused, part)
                                  : HeadLayout{.batch = T * keys, .head = D, .token = keys};
    kernels::strided_copy({.x = values,
                           .y = to,
                           .extents = {B, T, heads.kv_heads, D},
                           .x_strides = {layout.batch, layout.token, layout.head, 1},
                           .y_strides = {cached.batch, cached.token, cached.head, 1},
                           .x_offset = layout.offset,
                           .y_offset = length * keys},
                          stream);
  };
  append(layer.keys, heads.k, 1);
  append(layer.values, heads.v, 2);
  const Tensor out = Tensor::empty({B, T, C}, q.dtype(), q.device());
  kernels::attention_forward({.q = q,
                              .k = layer.keys,
                              .v = layer.values,
                              .alibi_slopes = pass.alibi_slopes,
                              .out = out,
                              .shape = shape},
                             stream);
  return out;
}

Var Attention::operator()(const Pass& pass, const Var& x) const {
  require_parameter("attention", out_.weight);
  if (pass.cache && pass.tape.mode() != TapeMode::inference)
    throw ConfigError(
        "attention: a pass with a key-value cache on a tape that records; expected a tape in "
        "inference mode, because nothing is differentiated through a cache; try "
        "Engine::inference_tape()");
  const Heads heads = project(pass, x);
  const Var attended = pass.cache ? Var(attend_cached(pass, heads)) : attend(pass, heads);
  return pass.drop(out_(pass, attended), out_site_);
}

// --- feed-forward layers ---

Mlp::Mlp(const ParallelStore& store, const Unit& unit, const std::string& name,
         const MlpConfig& config)
    : kind_(config.kind) {
  check_size("mlp", name, "width", config.width);
  const int64_t hidden = config.hidden > 0 ? config.hidden : 4 * config.width;
  const bool bias = config.bias && !is_gated(kind_);
  const auto in = [&](const char* part) {
    return Linear(store, unit, name + part,
                  {.in = config.width,
                   .out = hidden,
                   .bias = bias,
                   .split = Split::out,
                   .stddev = config.stddev});
  };
  if (is_gated(kind_)) gate_ = in(config.names.gate);
  up_ = in(config.names.up);
  down_ = Linear(store, unit, name + config.names.down,
                 {.in = hidden,
                  .out = config.width,
                  .bias = bias,
                  .split = Split::in,
                  .stddev = config.out_stddev > 0.0f ? config.out_stddev : config.stddev});
  site_ = site_of(config.site.empty() ? name : config.site, ".dropout");
}

Var Mlp::operator()(const Pass& pass, const Var& x) const {
  const Var up = pass.tape.parameter(require_parameter("mlp", up_.weight)),
            down = pass.tape.parameter(*down_.weight);
  if (!is_gated(kind_)) {
    const auto form = kind_ == MlpKind::gelu_tanh ? Activation::gelu_tanh : Activation::gelu_erf;
    const Var out = models::parallel_feed_forward(x, up, value_of(pass, up_.bias), down,
                                                  shared(pass, down_.bias), pass.parallel, form);
    return pass.drop(out, site_);
  }
  const Var gate = pass.tape.parameter(*gate_.weight);
  const auto form =
      static_cast<Gate>(static_cast<int>(kind_) - static_cast<int>(MlpKind::gated_silu));
  const Var whole = pass.parallel.enter(x);
  const Var out = gated_feed_forward(whole, gate, up, down, form);
  return pass.drop(pass.parallel.leave(out), site_);
}

}  // namespace zg::nn
