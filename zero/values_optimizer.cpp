#include "zerograd/zero/values_optimizer.h"

#include <utility>

#include "zerograd/runtime/text/format.h"

namespace zg::zero {

ValuesOptimizer::ValuesOptimizer(Values& values, const UpdateOptions& options)
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
    const auto [states, is_new] = states_.try_emplace(parameter.get());
    if (is_new)
      for (const Optimizer::State& state : entry.states)
        states->second.push_back(
            state.shape ? Tensor::zeros(state.shape(value.shape()), DType::f32, values_.device())
                        : Tensor::zeros(value.shape(), state.dtype.value_or(value.dtype()),
                                        values_.device()));
    const UpdateNumbers numbers = numbers_of(options_, *parameter);
    OptimizerRange& range = calls[{index, value.dtype()}].emplace_back();
    range.master = value;
    range.gradient = gradient;
    range.states = states->second;
    range.rate_factor = numbers.rate_factor;
    range.weight_decay = numbers.weight_decay;
    range.declared = entry.states;
  }
  for (const auto& [call, ranges] : calls)
    optimizers_.all()[call.first].optimizer->update({.rate = rate, .step = steps_}, ranges,
                                                    values_.device().compute());
  values_.clear_gradients();
}

}  // namespace zg::zero
