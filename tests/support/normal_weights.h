#pragma once

#include <vector>

#include "zerograd/autograd/values.h"

namespace zg::testing {

/// Normal values for every parameter, around 1 where it begins with ones: no bias and no gain is
/// trivial.
inline WeightSource normal_weights(const ParameterStore& store, float stddev) {
  WeightSource weights = initial_weights(store, 1);
  weights.read_range = {};
  weights.read = [&store, stddev](const std::string& name) {
    const Parameter& parameter = *store.find(name);
    std::vector<float> values(static_cast<size_t>(parameter.whole.numel()));
    initialise(Init::normal(stddev), 1, name, 0, values);
    if (parameter.init.kind == Init::Kind::ones)
      for (float& value : values) value += 1.0f;
    return values;
  };
  weights.read_part = [read = weights.read](const std::string& name, const Slice& slice) {
    const std::vector<float> whole = read(name);
    std::vector<float> values;
    for (int64_t i = 0; i < slice.numel(); ++i)
      values.push_back(whole[static_cast<size_t>(slice.whole_index(i))]);
    return values;
  };
  return weights;
}

/// The gradients as doubles, by the parameter's name.
inline std::map<std::string, std::vector<double>> gradients_of(const Values& values) {
  std::map<std::string, std::vector<double>> gradients;
  for (const auto& [name, gradient] : values.gradients())
    gradients.emplace(name, gradient.to_doubles());
  return gradients;
}

}  // namespace zg::testing
