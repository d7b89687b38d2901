#include "zerograd/zero/optimizer/elementwise.h"

#include <map>
#include <string>

#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/optimizer/lanes.h"

namespace zg::zero {
namespace {

using Options = std::map<std::string, double>;

/// An optimizer of the update kernel.
class KernelOptimizer : public Optimizer {
 public:
  KernelOptimizer(UpdateRule rule, int moments, bool decoupled)
      : rule_(rule), moments_(moments), decoupled_(decoupled) {}

  std::string name() const override { return name_of(rule_); }
  bool is_fused() const override { return true; }
  std::vector<State> states() const override {
    std::vector<State> states;
    for (int i = 1; i <= moments_; ++i) states.push_back({.name = fmt::format("moment{}", i)});
    return states;
  }
  void update(const OptimizerStep& step, std::span<const OptimizerRange> ranges,
              Stream& stream) const override {
    OptimizerUpdate update{.tensors = tensors_of(ranges),
                           .rule = rule_,
                           .gradient_scale = step.gradient_scale,
                           .scale = step.scale,
                           .rate = step.rate,
                           .step = step.step,
                           .decoupled = decoupled_,
                           .rounding_seed = step.rounding_seed};
    set_numbers(update);
    if (step.betas) {
      update.beta1 = step.betas->beta1;
      update.beta2 = step.betas->beta2;
    }
    kernels::optimizer_update(update, stream);
  }

 private:
  virtual void set_numbers(OptimizerUpdate& update) const = 0;

  const UpdateRule rule_;
  const int moments_;

 protected:
  const bool decoupled_;
};

class Adam final : public KernelOptimizer {
 public:
  explicit Adam(const AdamOptions& options)
      : KernelOptimizer(UpdateRule::adam, 2, options.decoupled), options_(options) {}
  Options options() const override {
    return {{"beta1", options_.beta1},
            {"beta2", options_.beta2},
            {"epsilon", options_.epsilon},
            {"decoupled", options_.decoupled},
            {"rate", options_.rate}};
  }

 private:
  void set_numbers(OptimizerUpdate& update) const override {
    update.rate *= options_.rate;
    update.beta1 = options_.beta1;
    update.beta2 = options_.beta2;
    update.epsilon = options_.epsilon;
  }
  const AdamOptions options_;
};

class Lion final : public KernelOptimizer {
 public:
  explicit Lion(const LionOptions& options)
      : KernelOptimizer(UpdateRule::lion, 1, options.decoupled), options_(options) {}
  Options options() const override {
    return {
        {"beta1", options_.beta1}, {"beta2", options_.beta2}, {"decoupled", options_.decoupled}};
  }

 private:
  void set_numbers(OptimizerUpdate& update) const override {
    update.beta1 = options_.beta1;
    update.beta2 = options_.beta2;
  }
  const LionOptions options_;
};

class Sgd final : public KernelOptimizer {
 public:
  explicit Sgd(const SgdOptions& options)
      : KernelOptimizer(UpdateRule::sgd, options.momentum > 0.0f ? 1 : 0, options.decoupled),
        options_(options) {}
  Options options() const override {
    return {{"momentum", options_.momentum},
            {"dampening", options_.dampening},
            {"nesterov", options_.nesterov},
            {"decoupled", options_.decoupled}};
  }

 private:
  void set_numbers(OptimizerUpdate& update) const override {
    update.beta1 = options_.momentum;
    update.dampening = options_.dampening;
    update.nesterov = options_.nesterov;
  }
  const SgdOptions options_;
};

}  // namespace

std::shared_ptr<const Optimizer> adam(const AdamOptions& options) {
  return std::make_shared<Adam>(options);
}
std::shared_ptr<const Optimizer> lion(const LionOptions& options) {
  return std::make_shared<Lion>(options);
}
std::shared_ptr<const Optimizer> sgd(const SgdOptions& options) {
  return std::make_shared<Sgd>(options);
}

std::vector<OptimizerTensor> tensors_of(std::span<const OptimizerRange> ranges) {
  std::vector<OptimizerTensor> tensors;
  const auto state = [](const OptimizerRange& range, size_t index) {
    return index < range.states.size() ? range.states[index] : Tensor();
  };
  for (const OptimizerRange& range : ranges)
    tensors.push_back({.parameter = range.master,
                       .gradient = range.gradient,
                       .moment1 = state(range, 0),
                       .moment2 = state(range, 1),
                       .low_precision = range.value,
                       .weight_decay = range.weight_decay,
                       .rate_factor = range.rate_factor,
                       .name = range.name,
                       .first = range.first});
  return tensors;
}

}  // namespace zg::zero
