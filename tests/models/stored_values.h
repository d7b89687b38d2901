#pragma once

#include <span>
#include <vector>

#include "tests/autograd/op_check.h"
#include "zerograd/autograd/parameter.h"
#include "zerograd/autograd/tape.h"

namespace zg::testing {

/// Values of a store's parameters in f64, and units that are always open.
struct StoredValues final : ParameterSource {
  explicit StoredValues(const ParameterStore& store, float stddev = 0.3f) {
    for (const auto& parameter : store.parameters()) {
      std::vector<float> initial(static_cast<size_t>(parameter->shape.numel()));
      initialise(Init::normal(stddev), 1, parameter->name, 0, initial);
      const std::vector<double> wide(initial.begin(), initial.end());
      values.push_back(Tensor::from(wide, parameter->shape, shared_device()));
    }
  }
  void acquire(const Unit&, Stream&) override {}
  void release(const Unit&, Stream&) noexcept override {}
  Tensor value(const Parameter& parameter) const override {
    return values[static_cast<size_t>(parameter.index)];
  }
  void reduce(const Unit&, std::span<Tensor> gradients, Stream&) override {
    for (Tensor& gradient : gradients) gradient = {};
  }
  std::vector<Tensor> values;
};

}  // namespace zg::testing
