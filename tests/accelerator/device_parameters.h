#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/autograd/tape.h"

namespace zg::testing {

/// Parameters that are always on the device, and their gradients.
class DeviceParameters final : public ParameterSource {
 public:
  DeviceParameters(const ParameterStore& store, const Device& device) {
    for (const auto& parameter : store.parameters()) {
      std::vector<float> start(static_cast<size_t>(parameter->shape.numel()));
      initialise(*parameter, 1, 0, start);
      if (parameter->init.kind == Init::Kind::normal)
        for (float& value : start) value *= 5.0f;
      values_[parameter.get()] = Tensor::from(start, parameter->shape, device);
    }
  }
  void acquire(const Unit&, Stream&) override {}
  void release(const Unit&, Stream&) noexcept override {}
  Tensor value(const Parameter& parameter) const override { return values_.at(&parameter); }
  void reduce(const Unit& unit, std::span<Tensor> gradients, Stream&) override {
    for (size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i]) this->gradients[unit.parameters[i]->name] = gradients[i].to_doubles();
  }

  std::map<std::string, std::vector<double>> gradients;

 private:
  std::map<const Parameter*, Tensor> values_;
};

}  // namespace zg::testing
