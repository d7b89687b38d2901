#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/autograd/tape.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/error.h"

namespace zg::testing {

/// Holds parameters as plain tensors and logs every call. It evicts a unit's values as soon as the
/// unit is not in use. A tape that kept values instead of acquiring them again reads poison.
class FakeSource final : public ParameterSource {
 public:
  FakeSource(const ParameterStore& store, const Device& device, DType dtype = DType::f64)
      : device_(device) {
    for (const auto& parameter : store.parameters()) {
      std::vector<float> start(static_cast<size_t>(parameter->shape.numel()));
      initialise(*parameter, 1, 0, start);
      rest_[parameter.get()] = std::vector<double>(start.begin(), start.end());
      dtype_ = dtype;
    }
  }

  void acquire(const Unit& unit, Stream&) override {
    log.push_back("acquire " + unit.name);
    if (held_[&unit]++ > 0) return;
    for (const Parameter* parameter : unit.parameters) {
      const Tensor value = Tensor::empty(parameter->shape, dtype_, device_);
      kernels::cast({Tensor::from(rest_[parameter], parameter->shape, device_), value},
                    device_.compute());
      values_[parameter] = value;
    }
  }

  void release(const Unit& unit, Stream&) noexcept override {
    log.push_back("release " + unit.name);
    if (--held_[&unit] > 0) return;
    for (const Parameter* parameter : unit.parameters) {
      Tensor& value = values_[parameter];
      for (int64_t i = 0; i < value.bytes(); ++i) value.raw()[i] = std::byte{0xff};  // NaN
      value = {};
    }
  }

  Tensor value(const Parameter& parameter) const override {
    const auto found = values_.find(&parameter);
    if (found == values_.end() || !found->second)
      throw NotResident("value: '" + parameter.name + "' outside unit '" + parameter.unit->name +
                        "'");
    return found->second;
  }

  Tensor gradient_place(const Parameter& parameter) override {
    const auto found = places.find(&parameter);
    return found == places.end() ? Tensor() : std::exchange(found->second, Tensor());
  }

  void reduce(const Unit& unit, std::span<Tensor> gradients, Stream&) override {
    log.push_back("reduce " + unit.name);
    for (size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i]) {
        reduced[unit.parameters[i]] = gradients[i];
        this->gradients[unit.parameters[i]] = gradients[i].to_doubles();
        gradient_dtypes[unit.parameters[i]] = gradients[i].dtype();
      }
  }

  /// The values that the next acquire() of its unit returns.
  std::vector<double>& at_rest(const Parameter& parameter) { return rest_.at(&parameter); }

  std::vector<std::string> log;
  std::map<const Parameter*, Tensor> places;  // each is returned once
  std::map<const Parameter*, Tensor> reduced;
  std::map<const Parameter*, std::vector<double>> gradients;
  std::map<const Parameter*, DType> gradient_dtypes;

 private:
  Device device_;
  DType dtype_ = DType::f64;
  std::map<const Parameter*, std::vector<double>> rest_;
  std::map<const Parameter*, Tensor> values_;
  std::map<const Unit*, int> held_;
};

}  // namespace zg::testing
