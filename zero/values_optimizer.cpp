#include "zerograd/zero/values_optimizer.h"

#include <utility>

#include "zerograd/runtime/text/format.h"

namespace zg::zero {

ValuesOptimizer::ValuesOptimizer(zg::Values& values, const UpdateOptions& options)
    : values_(values), options_(options), optimizers_(options) {
  validate(options);
  check_parameters(values.store(), optimizers_);
}

void ValuesOptimizer::step(float rate) {
  ++steps_;
  // Those of one optimizer and dtype are updated by one call.
  std::map<std::pair<size_t, DType>, std::vector<OptimizerRange>> calls;
  for (const auto& parameter : values_.store().parameters()) {
    const Tensor gradient = values_.gradient(*parameter), value = values_.stored(*parameter);
    if (!gradient || !is_updated(*parameter)) continue;
    const size_t index = optimizers_.index_of(*parameter);
    const Optimizers::Entry& entry = optimizers_.all()[index];
    if (value.dtype() != DType::f32 && value.dtype() != DType::bf16)
      raise<DTypeError>("optimizer: the value of '{}' is {}; expected f32 or bf16", parameter->name,
                        value.dtype());
    const UpdateNumbers numbers = numbers_of(options_, *parameter);
    OptimizerRange& range = calls[{index, value.dtype()}].emplace_back();
    range.master = value;
    range.gradient = gradient;
    range.states = states_of(*parameter);
    range.rate_factor = numbers.rate_factor;
    range.weight_decay = numbers.weight_decay;
    range.declared = entry.states;
  }
  for (const auto& [call, ranges] : calls)
    optimizers_.all()[call.first].optimizer->update({.rate = rate, .step = steps_}, ranges,
                                                    values_.device().compute());
  values_.clear_gradients();
}

std::vector<Tensor>& ValuesOptimizer::states_of(const Parameter& parameter) {
  const auto [states, is_new] = states_.try_emplace(&parameter);
  const Tensor value = values_.stored(parameter);
  if (is_new)
    for (const Optimizer::State& state : optimizers_.of(parameter).states)
      states->second.push_back(
          state.shape ? Tensor::zeros(state.shape(value.shape()), DType::f32, values_.device())
                      : Tensor::zeros(value.shape(), state.dtype.value_or(value.dtype()),
                                      values_.device()));
  return states->second;
}

NamedTensors ValuesOptimizer::named() {
  NamedTensors tensors = {
      {"steps", Tensor::from(std::vector<int64_t>{steps_}, {1}, values_.device())}};
  for (const auto& parameter : values_.store().parameters()) {
    if (!is_updated(*parameter)) continue;
    const std::vector<Tensor>& states = states_of(*parameter);
    for (size_t i = 0; i < states.size(); ++i)
      tensors[parameter->name + "." + optimizers_.of(*parameter).states[i].name] = states[i];
  }
  return tensors;
}

void ValuesOptimizer::save(const std::string& path) { save_safetensors(path, named()); }

void ValuesOptimizer::load(const std::string& path) {
  const NamedTensors own = named(), there = load_safetensors(path, values_.device());
  for (const auto& [name, tensor] : own) {
    const auto found = there.find(name);
    if (found == there.end() || found->second.shape() != tensor.shape() ||
        found->second.dtype() != tensor.dtype() || there.size() != own.size())
      raise<FileError>(
          "{}: expected {} tensors, {} among them in {} {}, as this optimizer has, got {}{}", path,
          own.size(), name, tensor.dtype(), tensor.shape(), there.size(),
          found == there.end() ? " without it" : "");
  }
  for (const auto& [name, tensor] : own) copy(there.at(name), tensor, values_.device().compute());
  steps_ = static_cast<int64_t>(there.at("steps").item());
}

}  // namespace zg::zero
