#include <map>
#include <optional>
#include <utility>

#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/models/lora.h"
#include "zerograd/runtime/text/format.h"

// Weights of a base together with adapters.
namespace zg::models {
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
