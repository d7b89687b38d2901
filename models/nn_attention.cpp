#include <algorithm>
#include <utility>

#include "zerograd/autograd/collective.h"
#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/models/nn.h"
#include "zerograd/models/nn_parameters.h"
#include "zerograd/runtime/text/format.h"

// Attention layers, and the caches with which they generate.
namespace zg::nn {

// --- caches ---

KeyValueCache::KeyValueCache(int64_t layers, int64_t capacity)
    : layers_(static_cast<size_t>(layers)), capacity_(capacity) {}

void KeyValueCache::truncate(int64_t length) {
  if (length < 0 || length > length_)
    raise<ConfigError>(
        "key_value_cache: truncate to {} positions; expected 0 to {}, the positions that it holds",
        length, length_);
  length_ = length;
}

void KeyValueCache::advance(int64_t tokens) {
  if (tokens < 0 || tokens > capacity_ - length_)
    raise<ConfigError>(
        "key_value_cache: advance by {} positions; the cache holds {} and has room for "
        "{} in all; expected 0 to {}",
        tokens, length_, capacity_, capacity_ - length_);
  length_ += tokens;
}

namespace {

/// The entry of the layer with this output matrix, which takes a free one in its first pass.
LayerCache& entry_of(const char* cache, std::vector<LayerCache>& layers, const Parameter* of) {
  for (LayerCache& layer : layers)
    if (!layer.of || layer.of == of) {
      layer.of = of;
      return layer;
    }
  raise<ConfigError>(
      "{}: attention with '{}' finds the cache full: it is for {} layers; expected the number of "
      "attention layers of the model",
      cache, of->name, layers.size());
}

}  // namespace

LayerCache& KeyValueCache::layer(const Parameter* of, int64_t rows, int64_t tokens) {
  if (tokens > capacity_ - length_)
    raise<ConfigError>(
        "key_value_cache: {} more tokens, after {} of {} positions; expected at most "
        "{} more; make the cache larger, or truncate() it",
        tokens, length_, capacity_, capacity_ - length_);
  LayerCache& found = entry_of("key_value_cache", layers_, of);
  if (found.keys && found.keys.extent(0) != rows)
    raise<ConfigError>(
        "key_value_cache: a pass with {} rows after passes with {} rows; expected "
        "the same number; make a new cache for another batch size",
        rows, found.keys.extent(0));
  return found;
}

int64_t KeyValueCache::batch() const {
  for (const LayerCache& layer : layers_)
    if (layer.keys) return layer.keys.extent(0);
  return 0;
}

namespace {

void check_rows(const char* cache, std::span<const int64_t> rows, int64_t count) {
  if (rows.empty()) raise<ConfigError>("{}: reorder to no rows; expected 1 or more", cache);
  for (const int64_t row : rows)
    if (row < 0 || row >= count)
      raise<ConfigError>("{}: reorder: there is no row {}; expected rows 0 to {}", cache, row,
                         count - 1);
}

bool is_same_order(std::span<const int64_t> rows, int64_t count) {
  if (std::ssize(rows) != count) return false;
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i] != static_cast<int64_t>(i)) return false;
  return true;
}

/// A tensor whose row i is row rows[i] of x. Only the first `elements` of each row are copied, the
/// others are uninitialised. Consecutive rows are copied together.
Tensor rows_of(const Tensor& x, std::span<const int64_t> rows, int64_t elements) {
  const auto count = std::ssize(rows);
  const int64_t width = x.numel() / x.extent(0);
  const Tensor y = Tensor::empty(x.shape().with(0, count), x.dtype(), x.device());
  if (elements == 0) return y;
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    const int64_t first = rows[static_cast<size_t>(begin)];
    for (end = begin + 1; end < count; ++end)
      if (rows[static_cast<size_t>(end)] != first + (end - begin)) break;
    kernels::strided_copy({.x = x,
                           .y = y,
                           .extents = {end - begin, elements},
                           .x_strides = {width, 1},
                           .y_strides = {width, 1},
                           .x_offset = first * width,
                           .y_offset = begin * width},
                          x.device().compute());
  }
  return y;
}

}  // namespace

void KeyValueCache::reorder(std::span<const int64_t> rows) {
  const int64_t count = batch();
  check_rows("key_value_cache", rows, count);
  for (LayerCache& layer : layers_) {
    const int64_t held = length_ * layer.keys.extent(2);
    layer.keys = rows_of(layer.keys, rows, held);
    layer.values = rows_of(layer.values, rows, held);
  }
}

MemoryCache::MemoryCache(int64_t layers, const Tensor& memory, const Tensor& lengths)
    : layers_(static_cast<size_t>(layers)), memory_(memory), lengths_(lengths) {
  if (layers < 1 || !memory || memory.shape().rank() != 3)
    raise<ConfigError>(
        "memory_cache: {} layers, memory {}; expected 1 layer or more and memory [B, S, width]",
        layers, memory ? memory.shape().str() : "absent");
  if (lengths && lengths.shape() != Shape{memory.extent(0)})
    raise<ConfigError>("memory_cache: lengths {} of memory {}; expected {}", lengths.shape(),
                       memory.shape(), Shape{memory.extent(0)});
}

int64_t MemoryCache::rows() const {
  return memory_ ? memory_.extent(0) : layers_.front().keys.extent(0);
}

void MemoryCache::reorder(std::span<const int64_t> rows) {
  check_rows("memory_cache", rows, this->rows());
  if (is_same_order(rows, this->rows())) return;
  const auto reordered = [&](Tensor& x) {
    if (x) x = rows_of(x, rows, x.numel() / x.extent(0));
  };
  reordered(memory_);
  reordered(lengths_);
  for (LayerCache& layer : layers_) {
    reordered(layer.keys);
    reordered(layer.values);
  }
}

LayerCache& MemoryCache::layer(const Parameter* of) {
  return entry_of("memory_cache", layers_, of);
}

void MemoryCache::fill(LayerCache& layer, const Tensor& keys, const Tensor& values) {
  layer.keys = keys;
  layer.values = values;
  const auto is_filled = [](const LayerCache& cached) { return static_cast<bool>(cached.keys); };
  if (std::ranges::all_of(layers_, is_filled)) memory_ = {};
}

// --- attention ---

/// Queries, keys and values of a call. q, k and v are one tensor [B, T, 3C] in the order `fused`,
/// or three.
struct Attention::Heads {
  Var q, k, v;
  int64_t heads = 0, kv_heads = 0;  ///< of this rank
  int64_t head_size = 0;
  std::optional<QKVOrder> fused = {};
};

namespace {

void check_divides(const char* field, int64_t n, int64_t by, const char* what) {
  if (n < 1 || by < 1 || n % by != 0)
    raise<ConfigError>("attention: {}: expected a multiple of {} ({}), got {}", field, by, what, n);
}

AttentionConfig resolved(AttentionConfig config, const TensorParallel& parallel) {
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.head_size == 0) {
    check_divides("width", config.width, config.heads, "the number of heads");
    config.head_size = config.width / config.heads;
  }
  check_divides("heads", config.heads, config.kv_heads, "the number of key-value heads");
  const char* parts = parallel.groups ? "the reduction groups" : "the number of tensor ranks";
  check_divides("heads", config.heads, parallel.group_count(), parts);
  check_divides("kv_heads", config.kv_heads, parallel.group_count(), parts);
  const bool is_grouped = config.kv_heads != config.heads;
  if (config.fused && is_grouped && !(config.rope && *config.fused == QKVOrder::by_part))
    raise<ConfigError>("attention: fused: expected as many key-value heads as heads, {}, got {}",
                       config.heads, config.kv_heads);
  if (parallel.group_count() > 1 && ((config.fused && is_grouped) || config.wide_query_key_norm))
    raise<Unsupported>(
        "attention: {} with {} {}; expected one: {}",
        config.fused ? "one matrix for grouped queries, keys and values"
                     : "a norm of all heads' queries and keys",
        parallel.group_count(), parallel.groups ? "reduction groups" : "tensor ranks",
        config.fused ? "its parts have different sizes" : "the norm reads every rank's heads");
  if (config.fused && config.query_key_norm)
    throw ConfigError(
        "attention: fused: set together with query_key_norm; expected separate matrices for "
        "queries, keys and values; leave fused unset");
  if (config.rope) validate(*config.rope);
  return config;
}

void require_inference(const Call& call) {
  if (call.tape.mode() == TapeMode::inference) return;
  throw ConfigError(
      "attention: a pass with a key-value cache on a tape that records; expected a tape in "
      "inference mode, because nothing is differentiated through a cache; try "
      "Engine::inference_tape()");
}

/// The number of elements of a head that the rotary position embedding rotates.
int64_t rotated_of(const AttentionConfig& config) {
  return static_cast<int64_t>(static_cast<double>(config.head_size) * config.rotated_share) / 2 * 2;
}

}  // namespace

Attention::Attention(Module* parent, const std::string& name, const AttentionConfig& config)
    : Module(parent, name), config_(resolved(config, parallel())) {
  check_size("attention", this->name(), "width", config.width);
  be_unit();
  const AttentionConfig& c = config_;
  const int64_t queries = c.heads * c.head_size, keys = c.kv_heads * c.head_size;
  const auto in = [&](const char* part, int64_t out, int64_t blocks = 1) {
    return Linear(this, part,
                  {.in = c.width,
                   .out = out,
                   .bias = c.bias,
                   .split = Split::out,
                   .stddev = c.stddev,
                   .blocks = blocks});
  };
  if (c.fused) {
    const bool has_blocks = *c.fused == QKVOrder::by_part && keys == queries;
    qkv_ = in(c.names.qkv, queries + 2 * keys, has_blocks ? 3 : 1);
  } else {
    q_ = in(c.names.q, queries);
    k_ = in(c.names.k, keys);
    v_ = in(c.names.v, keys);
  }
  if (c.query_key_norm) {
    const bool wide = c.wide_query_key_norm;
    const auto norm = [&](const char* part, int64_t width) {
      return Norm(this, part, {.width = width, .kind = c.norm, .epsilon = c.norm_epsilon});
    };
    q_norm_ = norm(c.names.q_norm, wide ? queries : c.head_size);
    k_norm_ = norm(c.names.k_norm, wide ? keys : c.head_size);
  }
  out_ = Linear(this, c.names.out,
                {.in = queries,
                 .out = c.width,
                 .bias = c.out_bias,
                 .split = Split::in,
                 .stddev = c.out_stddev > 0.0f ? c.out_stddev : c.stddev});
  const std::string& site = c.site.empty() ? this->name() : c.site;
  weights_site_ = site_of(site, ".attn_dropout");
  drop_ = Dropout(this, site_of(site, ".resid_dropout"));
}

Tensor Attention::rope_table(int64_t positions, DType dtype, const Device& device,
                             int64_t first) const {
  if (!config_.rope) return {};
  return zg::rope_table(*config_.rope, rotated_of(config_), positions, accumulator(dtype), device,
                        first);
}

/// Applies the rotary position embedding to queries or keys [B, T, heads * D].
Var Attention::turned(const Call& call, const Var& x, int64_t heads) const {
  const int64_t length = call.pass.cache ? call.pass.cache->length() : 0, T = x.shape()[1];
  const Tensor& shared = config_.is_local ? call.pass.local_rope_table : call.pass.rope_table;
  const Tensor table = shared ? shared : rope_table(length + T, x.dtype(), x.device());
  const int64_t first = table.extent(0) == T ? 0 : length;  // of the pass's own tokens, or of all
  return call.pass.positions ? rope(x, heads, table, call.pass.positions)
                             : rope(x, heads, table, first);
}

/// Makes three tensors of one, and turns queries and keys.
void Attention::split_fused(Heads& heads, const Call& call) const {
  const Shape shape = heads.q.shape();
  const int64_t D = heads.head_size, queries = heads.heads * D, keys = heads.kv_heads * D;
  const auto by_head = [&](const Var& all, int64_t part) {
    const Var rows = reshape(all, Shape{shape[0], shape[1], heads.heads, 3 * D});
    return reshape(slice(rows, 3, part * D, (part + 1) * D), Shape{shape[0], shape[1], queries});
  };
  const Var qkv = heads.q;
  const bool is_by_part = *std::exchange(heads.fused, {}) == QKVOrder::by_part;
  heads.q = is_by_part ? slice(qkv, 2, 0, queries) : by_head(qkv, 0);
  heads.k = is_by_part ? slice(qkv, 2, queries, queries + keys) : by_head(qkv, 1);
  heads.v = is_by_part ? slice(qkv, 2, queries + keys, queries + 2 * keys) : by_head(qkv, 2);
  heads.q = turned(call, heads.q, heads.heads);
  heads.k = turned(call, heads.k, heads.kv_heads);
}

/// Queries of x, keys and values of `source`. Without a memory that is x. With one that has the
/// keys and values of an earlier pass it is absent, and so are the keys and values of the result.
Attention::Heads Attention::project(const Call& call, const Var& x, const Memory* memory,
                                    const Var& source) const {
  const int64_t ranks = call.parallel.size();
  Heads result{.heads = config_.heads / ranks,
               .kv_heads = config_.kv_heads / ranks,
               .head_size = config_.head_size};
  if (config_.fused) {
    result.q = result.k = result.v = qkv_(x);
    result.fused = config_.fused;
    if (config_.rope) split_fused(result, call);
    return result;
  }
  std::vector<Var> all;
  if (memory) {
    all = products(call, x, {&q_});
    all.resize(3);
    if (source) {
      const std::vector<Var> both = products(call, source, {&k_, &v_});
      std::ranges::copy(both, all.begin() + 1);
    }
  } else {
    all = products(call, x, {&q_, &k_, &v_});
  }
  result.q = all[0];
  result.k = all[1];
  result.v = all[2];
  if (config_.query_key_norm) {
    // Each rank reads the norms' weights for its own heads, so backward sums their gradients.
    const auto normed = [&](const Norm& norm, const Var& y, int64_t heads) {
      Var weight = call.tape.parameter(*norm.weight);
      const Shape shape = y.shape();
      if (call.parallel.is_grouped()) {
        // The groups' heads follow each other, and the sum over each group is a block's.
        const int64_t groups = call.parallel.own_groups(), tokens = shape[0] * shape[1];
        if (ranks > 1) weight = copy_to_ranks({&weight, 1}, *call.parallel.ranks, true)[0];
        const Var by_group = transpose(reshape(y, {tokens, groups, shape[2] / groups}), 0, 1);
        const Var rows = reshape(by_group, {tokens * heads, result.head_size});
        const Var done = reshape(norm.rms_with(rows, weight, groups), by_group.shape());
        return reshape(transpose(done, 0, 1), shape);
      }
      if (ranks > 1) weight = copy_to_ranks(weight, *call.parallel.ranks);
      if (config_.wide_query_key_norm) return norm.rms_with(y, weight);
      const Var rows = reshape(y, Shape{shape[0], shape[1], heads, result.head_size});
      const Var done = norm.rms_with(rows, weight);
      return reshape(done, shape);
    };
    result.q = normed(q_norm_, result.q, result.heads);
    if (result.k) result.k = normed(k_norm_, result.k, result.kv_heads);
  }
  if (config_.rope) {
    result.q = turned(call, result.q, result.heads);
    result.k = turned(call, result.k, result.kv_heads);
  }
  return result;
}

Var Attention::attend(const Call& call, const Heads& heads, const Tensor& key_lengths) const {
  const AttentionOptions options{
      .causal = config_.causal,
      .scale = config_.scale,
      .dropout = call.pass.attention_dropout.value_or(call.pass.dropout),
      .key = call.key(weights_site_, 1, call.parallel.rank() * heads.heads, config_.heads),
      .alibi_slopes = call.pass.alibi_slopes,
      .order = heads.fused.value_or(QKVOrder::by_part),
      .window = config_.window,
      .starts = call.pass.starts,
      .key_lengths = key_lengths};
  if (heads.fused) return attention(heads.q, static_cast<int>(heads.heads), options);
  return attention(heads.q, heads.k, heads.v, static_cast<int>(heads.heads), options);
}

/// Appends the keys and values to the cache and attends to all of it. Does not use
/// call.pass.dropout.
Tensor Attention::attend_cached(const Call& call, const Heads& heads) const {
  if (!config_.causal || call.pass.starts)
    raise<ConfigError>(
        "attention: a pass with a key-value cache takes one text from left to right; expected "
        "causal true and no starts, got {}",
        config_.causal ? "starts" : "causal false");
  if (call.pass.key_lengths)
    throw ConfigError(
        "attention: a pass with a key-value cache and key_lengths; expected no key_lengths, "
        "because the texts of a cache have equal lengths");
  KeyValueCache& cache = *call.pass.cache;
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
  shape.scale = config_.scale;
  if (heads.fused) shape.q = qkv_layout(shape, *heads.fused, 0);
  LayerCache& layer = cache.layer(out_.weight, B, T);
  Stream& stream = call.tape.stream();
  const auto append = [&](Tensor& to, const Var& from, int64_t part) {
    const Tensor values = from.value();
    if (!to) to = Tensor::empty({B, cache.capacity(), keys}, values.dtype(), values.device());
    const HeadLayout layout = heads.fused ? qkv_layout(shape, *heads.fused, part)
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
                              .alibi_slopes = call.pass.alibi_slopes,
                              .out = out,
                              .shape = shape},
                             stream);
  return out;
}

Var Attention::operator()(const Var& x) const {
  require_parameter("attention", out_.weight);
  const Call call(*this, x);
  if (call.pass.cache) require_inference(call);
  const Heads heads = project(call, x);
  if (!call.pass.cache) return drop_(out_(attend(call, heads, call.pass.key_lengths)));
  return drop_(out_(call.tape.constant(attend_cached(call, heads))));
}

Var Attention::operator()(const Var& x, const Memory& memory) const {
  require_parameter("attention", out_.weight);
  const Call call(*this, x);
  const Pass& pass = call.pass;
  if (config_.causal || config_.fused || config_.rope || pass.starts || pass.alibi_slopes)
    raise<ConfigError>(
        "attention: to a memory, with {}; expected causal false, and no fused, rope, alibi_slopes "
        "or starts, because positions of x and of the memory are unrelated",
        config_.causal  ? "causal true"
        : config_.fused ? "fused"
        : config_.rope  ? "rope"
        : pass.starts   ? "starts"
                        : "alibi_slopes");
  if (memory.cache) require_inference(call);
  LayerCache* layer = memory.cache ? &memory.cache->layer(out_.weight) : nullptr;
  if (!memory.cache && !memory.values)
    throw ConfigError("attention: to a memory without values; expected values [B, S, width]");
  const Var source = !layer ? memory.values : layer->keys ? Var() : Var(memory.cache->memory_);
  Heads heads = project(call, x, &memory, source);
  const Tensor& lengths = memory.cache ? memory.cache->lengths_ : memory.lengths;
  if (!layer) return drop_(out_(attend(call, heads, lengths)));
  if (!layer->keys) memory.cache->fill(*layer, heads.k.value(), heads.v.value());
  heads.k = layer->keys;
  heads.v = layer->values;
  // Rows that share a row of the memory are attended to it together, as more queries.
  const Shape shape = heads.q.shape();
  const int64_t rows = layer->keys.extent(0);
  if (shape[0] % rows != 0)
    raise<ConfigError>("attention: {} rows to a memory of {} rows; expected a multiple of them",
                       shape[0], rows);
  heads.q = reshape(heads.q, Shape{rows, shape[0] / rows * shape[1], shape[2]});
  return drop_(out_(reshape(attend(call, heads, lengths), shape)));
}

}  // namespace zg::nn
