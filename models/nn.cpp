#include "zerograd/models/nn.h"

#include <cmath>

#include "zerograd/autograd/collective.h"
#include "zerograd/kernels/attention/attention.h"
#include "zerograd/models/nn_parameters.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::nn {
namespace {

/// The value of a parameter that every tensor rank has whole and reads outside the column- and
/// row-parallel layers (TensorParallel::shared).
Var shared(const Pass& pass, const Parameter* parameter) {
  if (!parameter) return {};
  const Var values[] = {pass.tape.parameter(*parameter)};
  return pass.parallel.shared(values)[0];
}

}  // namespace

// --- passes ---

Pass Pass::on(Tape& other) const {
  if (!life.is_alive())
    throw TapeError(
        "pass: a checkpointed segment reads a Pass that is gone: backward runs the segment after "
        "the function that made the Pass has returned; expected a copy; capture the Pass by value, "
        "or call nn::checkpoint(pass, inputs, segment)");
  return {
      other,   parallel,  dropout, place,       rope_table,        local_rope_table,   alibi_slopes,
      starts,  positions, cache,   key_lengths, attention_dropout, activation_dropout, lora_dropout,
      adapters};
}

Var checkpoint(const Pass& pass, std::span<const Var> inputs,
               std::function<Var(const Pass&, std::span<const Var>)> segment) {
  return zg::checkpoint(
      pass.tape, inputs,
      [pass, segment = std::move(segment)](Tape& on, std::span<const Var> values) {
        return segment(pass.on(on), values);
      });
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
  if (config.bias)
    bias = split == Split::out
               ? &store.rows(unit, bias_name, {config.out}, Init::zeros(), {}, config.blocks)
               : &store.whole(unit, bias_name, {config.out}, Init::zeros());
  const models::LoraConfig& lora = store.lora;
  if (!lora.enabled() || !models::is_target(lora, name, config.hidden)) return;
  lora_scale = models::lora_scale(lora);
  lora_site = site_of(name, ".lora_dropout");
  const ParallelStore trained = store.trained();
  const std::string a_name = models::lora_a_name(name), b_name = models::lora_b_name(name);
  const Shape a_shape{lora.rank, config.in}, b_shape{config.out, lora.rank};
  const Init a_init = Init::uniform(1.0f / std::sqrt(static_cast<float>(config.in)));
  lora_a = split == Split::in ? &trained.columns(unit, a_name, a_shape, a_init, options)
                              : &trained.whole(unit, a_name, a_shape, a_init, options);
  lora_b = split == Split::out
               ? &trained.rows(unit, b_name, b_shape, Init::zeros(), options, config.blocks)
               : &trained.whole(unit, b_name, b_shape, Init::zeros(), options);
}

namespace {

/// The adapter's share of a rank's product. A rank's gradient of the matrix that every rank has
/// whole is a part of it: copy_to_ranks() sums the parts.
Var adapter_product(const Linear& layer, const Pass& pass, const Var& x) {
  Var a = pass.tape.parameter(*layer.lora_a), b = pass.tape.parameter(*layer.lora_b);
  const models::TensorParallel& parallel = pass.parallel;
  bool differs = layer.split == Split::in;  // x, on the tensor ranks
  if (layer.split == Split::none) {
    const Var values[] = {a, b};
    const std::vector<Var> both = parallel.shared(values);
    a = both[0];
    b = both[1];
    differs = parallel.sequence;
  } else if (parallel.size() > 1) {
    Var& whole = layer.split == Split::out ? a : b;
    whole = copy_to_ranks(whole, *parallel.ranks);
  }
  const DropoutKey key = differs ? pass.key_of_rank(layer.lora_site) : pass.key(layer.lora_site);
  const Var kept = pass.lora_dropout > 0.0f ? zg::dropout(x, pass.lora_dropout, key) : x;
  const Var low = linear(kept, a);
  // The factor with `rank` features is the smallest to scale.
  const Var scaled = mul(low, layer.lora_scale);
  return linear(scaled, b);
}

}  // namespace

Var Linear::product(const Pass& pass, const Var& x, const Var& shift) const {
  const Var w = pass.tape.parameter(require_parameter("linear", weight));
  const Var y = linear(x, w, shift);
  if (!lora_a || !pass.adapters) return y;
  const Var change = adapter_product(*this, pass, x);
  return add(y, change);
}

Var Linear::operator()(const Pass& pass, const Var& x) const {
  require_parameter("linear", weight);
  if (split == Split::out) {
    const Var b = value_of(pass.tape, bias);
    return product(pass, pass.parallel.enter(x), b);
  }
  const Var b = shared(pass, bias);
  if (split == Split::none || pass.parallel.size() == 1) return product(pass, x, b);
  const Var sum = pass.parallel.leave(product(pass, x, {}));
  return b ? add(sum, b) : sum;
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

Var add_positions(const Pass& pass, const Parameter& table, const Var& x, int64_t first_position) {
  const int64_t tokens = x.shape()[1];
  const int64_t first_token = pass.parallel.sequence ? pass.parallel.rank() * tokens : 0;
  const Var rows = shared(pass, &table);
  if (pass.positions) {
    const Var all = embedding(pass.positions, rows);  // [B, T, width] of all tokens
    return add(x, pass.parallel.sequence ? slice(all, 1, first_token, first_token + tokens) : all);
  }
  const int64_t begin = first_position + first_token;
  return add(x, slice(rows, 0, begin, begin + tokens));
}

Norm::Norm(const ParallelStore& store, const Unit& unit, const std::string& name,
           const NormConfig& config)
    : kind(config.kind), epsilon(config.epsilon) {
  check_size("norm", name, "width", config.width);
  const Init init = kind == NormKind::rms_plus_one ? Init::zeros() : Init::ones();
  weight = &store.whole(unit, name + ".weight", {config.width}, init);
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

Var Norm::rms_with(const Var& x, const Var& weights) const {
  if (kind == NormKind::rms) return rms_norm(x, weights, epsilon);
  const DType wide = accumulator(x.dtype());
  const Var gain = zg::add(cast(weights, wide), 1.0);
  const Var normed = rms_norm(cast(x, wide), gain, epsilon);
  return cast(normed, x.dtype());
}

Var Norm::operator()(const Pass& pass, const Var& x) const {
  const std::vector<Var> p = parameters(pass);
  return kind == NormKind::layer ? layer_norm(x, p[0], p[1], epsilon) : rms_with(x, p[0]);
}

NormedSum Norm::add(const Pass& pass, const Var& x, const Var& delta) const {
  const std::vector<Var> p = parameters(pass);
  if (kind == NormKind::layer) return add_layer_norm(x, delta, p[0], p[1], epsilon);
  if (kind == NormKind::rms) return rms_norm_of_sum(x, delta, p[0], epsilon);
  const Var sum = zg::add(x, delta);
  return {sum, rms_with(sum, p[0])};
}

NormedSum Norm::of_sum(const Pass& pass, Residual in) const {
  if (!in.delta) return {in.x, (*this)(pass, in.x)};
  if (kind != NormKind::layer) return add(pass, in.x, in.delta);
  const std::vector<Var> p = parameters(pass);
  return layer_norm_of_sum(in.x, in.delta, p[0], p[1], epsilon);
}

// --- feed-forward layers ---

Mlp::Mlp(const ParallelStore& store, const Unit& unit, const std::string& name,
         const MlpConfig& config)
    : kind_(config.kind) {
  check_size("mlp", name, "width", config.width);
  const int64_t hidden = config.hidden > 0 ? config.hidden : 4 * config.width;
  const bool bias = config.bias && !is_gated(kind_);
  const auto in = [&](const char* part, int64_t blocks = 1) {
    return Linear(store, unit, name + part,
                  {.in = config.width,
                   .out = blocks * hidden,
                   .bias = bias,
                   .split = Split::out,
                   .stddev = config.stddev,
                   .blocks = blocks});
  };
  const char* both = is_gated(kind_) ? config.names.gate_up : nullptr;
  if (is_gated(kind_) && !both) gate_ = in(config.names.gate);
  up_ = both ? in(both, 2) : in(config.names.up);
  down_ = Linear(store, unit, name + config.names.down,
                 {.in = hidden,
                  .out = config.width,
                  .bias = bias,
                  .split = Split::in,
                  .stddev = config.out_stddev > 0.0f ? config.out_stddev : config.stddev});
  const std::string& site = config.site.empty() ? name : config.site;
  site_ = site_of(site, ".dropout");
  activation_site_ = site_of(site, ".activation_dropout");
}

Var Mlp::operator()(const Pass& pass, const Var& x) const {
  const Var up = pass.tape.parameter(require_parameter("mlp", up_.weight)),
            down = pass.tape.parameter(*down_.weight);
  const bool has_adapter = pass.adapters && (gate_.lora_a || up_.lora_a || down_.lora_a);
  if (!is_gated(kind_)) {
    const auto form = kind_ == MlpKind::gelu_tanh ? Activation::gelu_tanh : Activation::gelu_erf;
    if (pass.activation_dropout > 0.0f || has_adapter) {
      const Var activated = gelu(up_(pass, x), form);
      const Var kept =
          zg::dropout(activated, pass.activation_dropout, pass.key_of_rank(activation_site_));
      return pass.drop(down_(pass, kept), site_);
    }
    const Var out = models::parallel_feed_forward(x, up, value_of(pass.tape, up_.bias), down,
                                                  shared(pass, down_.bias), pass.parallel, form);
    return pass.drop(out, site_);
  }
  if (pass.activation_dropout > 0.0f)
    throw ConfigError(
        fmt::format("mlp: activation_dropout is {:f} in a layer with a gate; expected 0, or a "
                    "layer without one",
                    pass.activation_dropout));
  const auto form =
      static_cast<Gate>(static_cast<int>(kind_) - static_cast<int>(MlpKind::gated_silu));
  const Var whole = pass.parallel.enter(x);
  if (!gate_.weight) {
    const Var both = up_.product(pass, whole, {});
    const int64_t axis = both.shape().rank() - 1, hidden = both.shape()[-1] / 2;
    const Var gates = slice(both, static_cast<int>(axis), 0, hidden);
    const Var ups = slice(both, static_cast<int>(axis), hidden, 2 * hidden);
    return pass.drop(down_(pass, gated(gates, ups, form)), site_);
  }
  const Var gate = pass.tape.parameter(*gate_.weight);
  if (has_adapter) {
    const Var gates = gate_.product(pass, whole, {});
    const Var ups = up_.product(pass, whole, {});
    return pass.drop(down_(pass, gated(gates, ups, form)), site_);
  }
  const Var out = gated_feed_forward(whole, gate, up, down, form);
  return pass.drop(pass.parallel.leave(out), site_);
}

}  // namespace zg::nn
