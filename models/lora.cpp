#include "zerograd/models/lora.h"

#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

constexpr const char *a_end = ".lora_A.weight", *b_end = ".lora_B.weight", *weight_end = ".weight";

std::string without(const std::string& name, const char* end) {
  return name.ends_with(end) ? name.substr(0, name.size() - std::string(end).size()) : "";
}

bool names_layer(const std::string& target, const std::string& layer) {
  return layer == target || layer.ends_with("." + target);
}

std::string last_part(const std::string& layer) { return layer.substr(layer.rfind('.') + 1); }

}  // namespace

float lora_scale(const LoraConfig& config) {
  const auto rank = static_cast<float>(config.rank);
  return config.alpha / (config.rank_stabilised ? std::sqrt(rank) : rank);
}

void validate(const LoraConfig& config) {
  if (config.rank == 0) return;
  const auto refuse = [](const char* field, const char* expected, const std::string& got) {
    raise<ConfigError>("lora: {}: expected {}, got {}", field, expected, got);
  };
  if (config.rank < 0) refuse("rank", "1 or more", std::to_string(config.rank));
  if (!(config.alpha > 0.0f) || !std::isfinite(config.alpha))
    refuse("alpha", "a number above 0", fmt::format("{:.6g}", config.alpha));
  if (!(config.dropout >= 0.0f && config.dropout < 1.0f))
    refuse("dropout", "0 or more and below 1", fmt::format("{:.6g}", config.dropout));
  if (config.targets.empty()) refuse("targets", "a name of linear layers, or all-linear", "none");
  for (const std::string& target : config.targets)
    if (target.empty()) refuse("targets", "names of linear layers", "an empty one");
}

bool is_target(const LoraConfig& config, const std::string& layer, bool hidden) {
  for (const std::string& target : config.targets)
    if ((target == all_linear && hidden) || names_layer(target, layer)) return true;
  return false;
}

void check_targets(const LoraConfig& config, const ParameterStore& store) {
  if (!config.enabled()) return;
  std::set<std::string> adapted, names;
  for (const auto& parameter : store.parameters()) {
    if (const std::string layer = lora_layer(parameter->name); !layer.empty())
      adapted.insert(layer);
    else if (parameter->hidden_matrix)
      names.insert(last_part(without(parameter->name, weight_end)));
  }
  for (const std::string& layer : adapted) names.insert(last_part(layer));
  for (const std::string& target : config.targets) {
    bool found = target == all_linear && !adapted.empty();
    for (const std::string& layer : adapted) found = found || names_layer(target, layer);
    if (found) continue;
    const std::string there = join({names.begin(), names.end()}, ", ");
    raise<ConfigError>(
        "lora: targets: '{}' names no linear layer of the model; expected some of {}, "
        "or all-linear",
        target, there.empty() ? "none" : there);
  }
}

std::string lora_a_name(const std::string& layer) { return layer + a_end; }
std::string lora_b_name(const std::string& layer) { return layer + b_end; }
std::string lora_layer(const std::string& parameter) {
  const std::string layer = without(parameter, a_end);
  return layer.empty() ? without(parameter, b_end) : layer;
}

namespace {

/// W + scale B A.
std::vector<float> merged_matrix(std::vector<float> weight, const Shape& shape,
                                 const std::vector<float>& a, const std::vector<float>& b,
                                 const LoraConfig& config) {
  const int64_t out = shape[0], in = shape[1];
  const Device device = Device::cpu(0, {.separate = true});
  const Tensor product = Tensor::empty({out, in}, DType::f32, device);
  kernels::matmul({.a = Tensor::from(b, {out, config.rank}, device),
                   .b = Tensor::from(a, {config.rank, in}, device),
                   .c = product,
                   .M = out,
                   .N = in,
                   .K = config.rank},
                  device.compute());
  const std::vector<float> change = product.to_host<float>();
  const float scale = lora_scale(config);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] += scale * change[i];
  return weight;
}

/// Throws FileError unless a layer's three matrices are there and fit.
void require_adapter(const WeightSource& base, const WeightSource& adapters,
                     const std::string& layer, int64_t rank) {
  const auto weight = base.shapes.find(layer + ".weight");
  if (weight == base.shapes.end() || weight->second.rank() != 2)
    raise<FileError>("lora: {}: has an adapter of '{}'; {} has no such matrix", adapters.path,
                     layer, base.path);
  const Shape expected[] = {{rank, weight->second[1]}, {weight->second[0], rank}};
  const std::string names[] = {lora_a_name(layer), lora_b_name(layer)};
  for (int i = 0; i < 2; ++i) {
    const auto found = adapters.shapes.find(names[i]);
    if (found == adapters.shapes.end())
      raise<FileError>("lora: {}: has no '{}' {}", adapters.path, names[i], expected[i]);
    if (found->second != expected[i])
      raise<FileError>("lora: {}: '{}' has shape {}; expected {}, for a rank of {}", adapters.path,
                       names[i], found->second, expected[i], rank);
  }
}

}  // namespace

WeightSource merged(const WeightSource& base, const WeightSource& adapters,
                    const LoraConfig& config) {
  validate(config);
  std::map<std::string, std::string> layer_of;  // by the name of an adapted weight
  for (const auto& [name, shape] : adapters.shapes)
    if (const std::string layer = lora_layer(name); !layer.empty()) {
      require_adapter(base, adapters, layer, config.rank);
      layer_of.emplace(layer + ".weight", layer);
    }
  WeightSource whole{.path = base.path, .shapes = base.shapes};
  whole.read = [base, adapters, config, layer_of](const std::string& name) {
    std::vector<float> values = base.read(name);
    if (!layer_of.contains(name)) return values;
    const std::string& layer = layer_of.at(name);
    const std::vector<float> a = adapters.read(lora_a_name(layer)),
                             b = adapters.read(lora_b_name(layer));
    return merged_matrix(std::move(values), base.shapes.at(name), a, b, config);
  };
  return whole;
}

WeightSource joined(const WeightSource& base, const WeightSource& adapters) {
  WeightSource all{.path = adapters.path, .shapes = base.shapes};
  for (const auto& [name, shape] : adapters.shapes)
    if (!all.shapes.emplace(name, shape).second)
      raise<FileError>("lora: '{}' is in {} and in {}; expected it in one of them", name, base.path,
                       adapters.path);
  all.dtypes = base.dtypes;
  all.dtypes.insert(adapters.dtypes.begin(), adapters.dtypes.end());
  all.read = [base, adapters](const std::string& name) {
    return (adapters.shapes.contains(name) ? adapters : base).read(name);
  };
  all.read_range = [base, adapters](const std::string& name, int64_t begin,
                                    int64_t count) -> std::optional<std::vector<float>> {
    const WeightSource& one = adapters.shapes.contains(name) ? adapters : base;
    return one.read_range ? one.read_range(name, begin, count) : std::nullopt;
  };
  return all;
}

}  // namespace zg::models
