#include "zerograd/models/nn.h"

#include <cmath>

#include "zerograd/autograd/collective.h"
#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/models/nn_parameters.h"
#include "zerograd/runtime/text/format.h"

namespace zg::nn {
namespace {

/// The value of a parameter that every tensor rank has whole and reads outside the column- and
/// row-parallel layers (TensorParallel::shared).
Var shared(const Call& call, const Parameter* parameter) {
  if (!parameter) return {};
  const Var values[] = {call.tape.parameter(*parameter)};
  return call.parallel.shared(values)[0];
}

}  // namespace

Tensor alibi_slopes_of(int64_t heads, const TensorParallel& parallel, const Var& x) {
  const std::vector<float> all = alibi_slopes(heads);
  const auto [begin, count] = models::rows_of_rank(heads, parallel);
  const std::vector<float> slopes(all.begin() + begin, all.begin() + begin + count);
  if (accumulator(x.dtype()) == DType::f32) return Tensor::from(slopes, {count}, x.device());
  const std::vector<double> wide(slopes.begin(), slopes.end());
  return Tensor::from(wide, {count}, x.device());
}

// --- linear layers and norms ---

Linear::Linear(Module* parent, const std::string& name, const LinearConfig& config)
    : Module(parent, name),
      split(config.split),
      divided(config.split == Split::in ? config.in : config.out / config.blocks),
      blocks(config.blocks) {
  check_size("linear", this->name(), "in", config.in);
  check_size("linear", this->name(), "out", config.out);
  const Shape shape{config.out, config.in};
  const Init init = config.init.value_or(Init::normal(config.stddev));
  be_unit();
  const ParallelStore& store = root();
  const std::string weight_name = this->name() + ".weight", bias_name = this->name() + ".bias";
  const ParameterStore::Options options = {.decay = true, .hidden_matrix = config.hidden};
  weight = split == Split::out
               ? &store.rows(*unit(), weight_name, shape, init, options, config.blocks)
           : split == Split::in ? &store.columns(*unit(), weight_name, shape, init, options)
                                : &store.whole(*unit(), weight_name, shape, init, options);
  if (config.bias)
    bias = split == Split::out
               ? &store.rows(*unit(), bias_name, {config.out}, Init::zeros(), {}, config.blocks)
               : &store.whole(*unit(), bias_name, {config.out}, Init::zeros());
  const models::LoraConfig& lora = store.lora;
  if (!lora.enabled() || !models::is_target(lora, this->name(), config.hidden)) return;
  lora_scale = models::lora_scale(lora);
  lora_site = site_of(this->name(), ".lora_dropout");
  const ParallelStore trained = store.trained();
  const std::string a_name = models::lora_a_name(this->name()),
                    b_name = models::lora_b_name(this->name());
  const Shape a_shape{lora.rank, config.in}, b_shape{config.out, lora.rank};
  const Init a_init = Init::uniform(1.0f / std::sqrt(static_cast<float>(config.in)));
  lora_a = split == Split::in ? &trained.columns(*unit(), a_name, a_shape, a_init, options)
                              : &trained.whole(*unit(), a_name, a_shape, a_init, options);
  lora_b = split == Split::out
               ? &trained.rows(*unit(), b_name, b_shape, Init::zeros(), options, config.blocks)
               : &trained.whole(*unit(), b_name, b_shape, Init::zeros(), options);
}

namespace {

/// Key for x, whose features are those that a rank's columns of a row-parallel weight read.
DropoutKey key_of_columns(const Call& call, uint32_t site, const Var& x, const Parameter& weight) {
  const Slice& columns = weight.slice;
  return call.key(site, x.shape().rank() - 1, columns.begin, columns.extent);
}

/// The adapter's share of a rank's product. A rank's gradient of the matrix that every rank has
/// whole is a part of it: copy_to_ranks() sums the parts.
Var adapter_product(const Linear& layer, const Call& call, const Var& x) {
  Var a = call.tape.parameter(*layer.lora_a), b = call.tape.parameter(*layer.lora_b);
  const TensorParallel& parallel = call.parallel;
  if (layer.split == Split::none) {
    const Var values[] = {a, b};
    const std::vector<Var> both = parallel.shared(values);
    a = both[0];
    b = both[1];
  } else if (parallel.size() > 1) {
    Var& whole = layer.split == Split::out ? a : b;
    whole = copy_to_ranks(whole, *parallel.ranks);
  }
  const uint32_t site = layer.lora_site;
  const DropoutKey key = layer.split == Split::in     ? key_of_columns(call, site, x, *layer.lora_a)
                         : layer.split == Split::none ? call.key(site, x)
                                                      : call.key(site);
  const Var kept = zg::dropout(x, call.pass.lora_dropout, key);
  const Var low = linear(kept, a);
  // The factor with `rank` features is the smallest to scale.
  const Var scaled = mul(low, layer.lora_scale);
  return linear(scaled, b);
}

/// The adapter's output, in the form between split layers for Split::in, where sums are those of
/// reduction groups. x is what the layer's operator() takes. Every rank has the tensors with `rank`
/// features and all tokens, so gradients of the matrix that it has whole are whole, too.
Var adapter_of_groups(const Linear& layer, const Call& call, const Var& x) {
  constexpr int tokens = 1;
  const TensorParallel& parallel = call.parallel;
  const bool sequence = parallel.sequence && parallel.size() > 1;
  const Var a = call.tape.parameter(*layer.lora_a), b = call.tape.parameter(*layer.lora_b);
  const float dropout = call.pass.lora_dropout;
  SplitWeight part{.extent = parallel.group_extent(layer.divided), .blocks = layer.blocks};
  if (layer.split == Split::in) {
    part.weight = a;
    const Var kept =
        zg::dropout(x, dropout, key_of_columns(call, layer.lora_site, x, *layer.lora_a));
    const Var low = split_sum({kept}, part, parallel.own_groups(), parallel.ranks);
    const Var y = linear(mul(low, layer.lora_scale), b);
    return sequence ? part_of_rank(y, tokens, *parallel.ranks) : y;
  }
  part.weight = b;
  const Var whole = sequence ? join_parts(x, tokens, *parallel.ranks) : x;
  const Var low = linear(zg::dropout(whole, dropout, call.key(layer.lora_site)), a);
  Var scaled = mul(low, layer.lora_scale);
  if (parallel.size() > 1) scaled = copy_to_ranks_by_tree(scaled, *parallel.ranks);
  return split_linears(scaled, {&part, 1}, parallel.own_groups())[0];
}

}  // namespace

Var Linear::product(const Call& call, const Var& x, const Var& shift) const {
  const Var w = call.tape.parameter(require_parameter("linear", weight));
  const Var y = linear(x, w, shift);
  if (!lora_a || !call.pass.adapters) return y;
  const Var change = adapter_product(*this, call, x);
  return zg::add(y, change);
}

SplitWeight Linear::part(const Call& call, const Var& shift) const {
  return {.weight = call.tape.parameter(require_parameter("linear", weight)),
          .bias = shift,
          .extent = call.parallel.group_extent(divided),
          .blocks = blocks};
}

std::vector<Var> products(const Call& call, const Var& x,
                          std::initializer_list<const Linear*> layers) {
  const Var whole = call.parallel.enter(x);
  std::vector<SplitWeight> parts;
  std::vector<Var> results;
  for (const Linear* layer : layers) {
    const Var shift = value_of(call.tape, layer->bias);
    if (call.parallel.is_grouped())
      parts.push_back(layer->part(call, shift));
    else
      results.push_back(layer->product(call, whole, shift));
  }
  if (parts.empty()) return results;
  results = split_linears(whole, parts, call.parallel.own_groups());
  for (size_t i = 0; call.pass.adapters && i < results.size(); ++i)
    if (const Linear& layer = *layers.begin()[i]; layer.lora_a)
      results[i] = zg::add(results[i], adapter_of_groups(layer, call, x));
  return results;
}

Var Linear::sum_of_groups(const SplitOperand& operand) const {
  const Call call(*this, operand.x);
  return split_sum(operand, part(call, shared(call, bias)), call.parallel.own_groups(),
                   call.parallel.ranks, call.parallel.sequence);
}

Var Linear::operator()(const Var& x) const {
  require_parameter("linear", weight);
  const Call call(*this, x);
  if (split == Split::out) return products(call, x, {this})[0];
  if (split == Split::in && call.parallel.is_grouped()) {
    const Var y = sum_of_groups({x});
    return lora_a && call.pass.adapters ? zg::add(y, adapter_of_groups(*this, call, x)) : y;
  }
  const Var b = shared(call, bias);
  if (split == Split::none || call.parallel.size() == 1) return product(call, x, b);
  const Var sum = call.parallel.leave(product(call, x, {}));
  return b ? zg::add(sum, b) : sum;
}

Embedding::Embedding(Module* parent, const std::string& name, const EmbeddingConfig& config)
    : Module(parent, name), tokens(config.tokens) {
  check_size("embedding", this->name(), "tokens", config.tokens);
  check_size("embedding", this->name(), "width", config.width);
  be_unit();
  weight = &root().rows(*unit(), this->name() + ".weight", {config.tokens, config.width},
                        Init::normal(config.stddev), config.options);
}

Var Embedding::operator()(const Var& ids, const Var& positions, int64_t first_position) const {
  require_parameter("embedding", weight);
  const Call call(*this, ids);
  const Var table = call.tape.parameter(*weight);
  if (call.parallel.size() == 1) return embedding(ids.value(), table, positions, first_position);
  if (positions)
    raise<ConfigError>(
        "embedding: got `positions` with {} tensor ranks; expected one tensor rank; "
        "add the position embedding to the result instead",
        call.parallel.size());
  return models::parallel_embedding(ids.value(), table, tokens, call.parallel);
}

Var Embedding::logits(const Var& x) const {
  require_parameter("embedding", weight);
  const Call call(*this, x);
  const Var table = call.tape.parameter(*weight);
  const Var own = models::column_parallel_linear(x, table, /*bias=*/{}, call.parallel, tokens);
  return models::join_vocabulary(own, tokens, call.parallel);
}

Var Embedding::loss(const Var& x, const Tensor& targets, int64_t ignore_index) const {
  require_parameter("embedding", weight);
  const Call call(*this, x);
  const Var table = call.tape.parameter(*weight);
  return models::parallel_projection_cross_entropy(x, table, targets, tokens, call.parallel,
                                                   ignore_index);
}

Positions::Positions(Module* parent, const std::string& name, const PositionsConfig& config)
    : Module(parent, name) {
  check_size("positions", this->name(), "positions", config.positions);
  check_size("positions", this->name(), "width", config.width);
  weight = &add("weight", {config.positions, config.width}, Init::normal(config.stddev));
}

namespace {

/// x + rows [T, C], whose gradient is a sum over samples in an order that does not depend on T.
Var add_rows(const Var& x, const Var& rows) {
  const Tensor y = zg::add(Var(x.value()), Var(rows.value())).value();
  return record(
      "add_rows", {x, rows}, y, {}, 0,
      [](int, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        pass.accumulate(0, dy);
        if (!pass.needs(1)) return;
        const Tensor sum = pass.make_gradient(1);
        kernels::reduce({ReduceOp::sum, dy, sum, 1u << 0, /*columns=*/1}, pass.stream());
        pass.accumulate(1, sum);
      },
      [](int, const ComposedPass& pass) {
        for (const int input : {0, 1}) pass.accumulate(input, pass.gradient_of_output());
      });
}

}  // namespace

Var Positions::operator()(const Var& x, int64_t first_position) const {
  require_parameter("positions", weight);
  const Call call(*this, x);
  const bool divided = call.parallel.sequence;
  const int64_t tokens = x.shape()[1], first_token = divided ? call.parallel.rank() * tokens : 0;
  const Var rows = shared(call, weight);
  if (call.pass.positions) {
    if (divided && call.parallel.is_grouped() && rows.needs_gradient())
      raise<Unsupported>(
          "positions '{}': packed documents with {} reduction groups and sequence parallelism; "
          "expected two of the three",
          name(), call.parallel.groups);
    const Var all = embedding(call.pass.positions, rows);  // [B, T, width] of all tokens
    return zg::add(x, divided ? slice(all, 1, first_token, first_token + tokens) : all);
  }
  const int64_t begin = first_position + first_token;
  const Var own = slice(rows, 0, begin, begin + tokens);
  return call.parallel.is_grouped() ? add_rows(x, own) : zg::add(x, own);
}

Norm::Norm(Module* parent, const std::string& name, const NormConfig& config)
    : Module(parent, name), kind(config.kind), epsilon(config.epsilon) {
  check_size("norm", this->name(), "width", config.width);
  const Init init = kind == NormKind::rms_plus_one ? Init::zeros() : Init::ones();
  weight = &Module::add("weight", {config.width}, init);
  if (kind == NormKind::layer && config.bias)
    bias = &Module::add("bias", {config.width}, Init::zeros());
}

std::vector<Var> Norm::parameters(const Call& call) const {
  std::vector<Var> values = {call.tape.parameter(*weight)};
  if (bias) values.push_back(call.tape.parameter(*bias));
  values = call.parallel.shared(values);
  values.resize(2);
  return values;
}

Var Norm::rms_with(const Var& x, const Var& weights, int64_t token_blocks) const {
  if (kind == NormKind::rms) return rms_norm(x, weights, epsilon, token_blocks);
  const DType wide = accumulator(x.dtype());
  const Var gain = zg::add(cast(weights, wide), 1.0);
  const Var normed = rms_norm(cast(x, wide), gain, epsilon, token_blocks);
  return cast(normed, x.dtype());
}

Var Norm::operator()(const Var& x) const {
  require_parameter("norm", weight);
  const Call call(*this, x);
  const std::vector<Var> p = parameters(call);
  const int64_t blocks = call.parallel.token_blocks();
  return kind == NormKind::layer ? layer_norm(x, p[0], p[1], epsilon, blocks)
                                 : rms_with(x, p[0], blocks);
}

NormedSum Norm::add(const Var& x, const Var& delta) const {
  require_parameter("norm", weight);
  const Call call(*this, x);
  const std::vector<Var> p = parameters(call);
  const int64_t blocks = call.parallel.token_blocks();
  if (kind == NormKind::layer) return add_layer_norm(x, delta, p[0], p[1], epsilon, blocks);
  if (kind == NormKind::rms) return rms_norm_of_sum(x, delta, p[0], epsilon, blocks);
  const Var sum = zg::add(x, delta);
  return {sum, rms_with(sum, p[0], blocks)};
}

NormedSum Norm::of_sum(Residual in) const {
  if (!in.delta) return {in.x, (*this)(in.x)};
  if (kind != NormKind::layer) return add(in.x, in.delta);
  require_parameter("norm", weight);
  const Call call(*this, in.x);
  const std::vector<Var> p = parameters(call);
  return layer_norm_of_sum(in.x, in.delta, p[0], p[1], epsilon, call.parallel.token_blocks());
}

// --- feed-forward layers ---

Mlp::Mlp(Module* parent, const std::string& name, const MlpConfig& config)
    : Module(parent, name), kind_(config.kind) {
  check_size("mlp", this->name(), "width", config.width);
  be_unit();
  const int64_t hidden = config.hidden > 0 ? config.hidden : 4 * config.width;
  const bool bias = config.bias && !is_gated(kind_);
  const auto in = [&](const char* part, int64_t blocks = 1) {
    return Linear(this, part,
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
  down_ = Linear(this, config.names.down,
                 {.in = hidden,
                  .out = config.width,
                  .bias = bias,
                  .split = Split::in,
                  .stddev = config.out_stddev > 0.0f ? config.out_stddev : config.stddev});
  const std::string& site = config.site.empty() ? this->name() : config.site;
  activation_site_ = site_of(site, ".activation_dropout");
  drop_ = Dropout(this, site_of(site, ".dropout"));
}

Var Mlp::operator()(const Var& x) const {
  require_parameter("mlp", up_.weight);
  const Call call(*this, x);
  const float activation_dropout = call.pass.activation_dropout;
  const Var up = call.tape.parameter(*up_.weight), down = call.tape.parameter(*down_.weight);
  const bool has_adapter = call.pass.adapters && (gate_.lora_a || up_.lora_a || down_.lora_a);
  if (!is_gated(kind_)) {
    const auto form = kind_ == MlpKind::gelu_tanh ? Activation::gelu_tanh : Activation::gelu_erf;
    if (activation_dropout > 0.0f || has_adapter) {
      const Var activated = gelu(up_(x), form);
      const DropoutKey key = key_of_columns(call, activation_site_, activated, *down_.weight);
      const Var kept = zg::dropout(activated, activation_dropout, key);
      return drop_(down_(kept));
    }
    if (call.parallel.is_grouped())
      return drop_(down_.sum_of_groups({.x = up_(x), .activation = form}));
    const Var out = models::parallel_feed_forward(x, up, value_of(call.tape, up_.bias), down,
                                                  shared(call, down_.bias), call.parallel, form);
    return drop_(out);
  }
  if (activation_dropout > 0.0f)
    raise<ConfigError>(
        "mlp: activation_dropout is {:f} in a layer with a gate; expected 0, or a "
        "layer without one",
        activation_dropout);
  const auto form =
      static_cast<Gate>(static_cast<int>(kind_) - static_cast<int>(MlpKind::gated_silu));
  if (!gate_.weight) {
    const Var both = products(call, x, {&up_})[0];
    const int64_t axis = both.shape().rank() - 1, hidden = both.shape()[-1] / 2;
    const Var gates = slice(both, static_cast<int>(axis), 0, hidden);
    const Var ups = slice(both, static_cast<int>(axis), hidden, 2 * hidden);
    return drop_(down_(gated(gates, ups, form)));
  }
  const Var gate = call.tape.parameter(*gate_.weight);
  if (has_adapter || call.parallel.is_grouped()) {
    const std::vector<Var> both = products(call, x, {&gate_, &up_});
    return drop_(has_adapter ? down_(gated(both[0], both[1], form))
                             : down_.sum_of_groups({.x = both[0], .up = both[1], .gate = form}));
  }
  const Var out = gated_feed_forward(call.parallel.enter(x), gate, up, down, form);
  return drop_(call.parallel.leave(out));
}

Var hooked(const Tape& tape, const BlockHook& hook, int64_t layer, const Var& x) {
  if (!hook) return x;
  const Var y = hook(layer, x);
  if (!y)
    raise<ShapeError>("hook of layer {}: it returns an absent Var; expected {}", layer, x.shape());
  if (y.shape() != x.shape())
    raise<ShapeError>("hook of layer {}: it returns {}; expected {}", layer, y.shape(), x.shape());
  return on_tape(tape, y);
}

}  // namespace zg::nn
