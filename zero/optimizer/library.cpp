#include <cmath>
#include <utility>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer/adafactor.h"
#include "zerograd/zero/optimizer/elementwise.h"
#include "zerograd/zero/optimizer/muon.h"
#include "zerograd/zero/optimizer/optimizers.h"

// The optimizers that UpdateOptions::rule names.
namespace zg::zero {

std::shared_ptr<const Optimizer> optimizer_of(const UpdateOptions& o) {
  if (o.optimizer) return o.optimizer;
  const AdamOptions adam_options = {
      .beta1 = o.beta1, .beta2 = o.beta2, .epsilon = o.epsilon, .decoupled = o.decoupled};
  switch (o.rule) {
    case OptimizerRule::adam:
      break;
    case OptimizerRule::lion:
      return lion({.beta1 = o.beta1, .beta2 = o.beta2, .decoupled = o.decoupled});
    case OptimizerRule::sgd:
      return sgd({.momentum = o.momentum,
                  .dampening = o.dampening,
                  .nesterov = o.nesterov,
                  .decoupled = o.decoupled});
    case OptimizerRule::muon:
      return muon(o.muon, adam_options);
    case OptimizerRule::adafactor:
      return adafactor(o.adafactor);
  }
  return adam(adam_options);
}

std::string optimizer_name(const UpdateOptions& options) {
  if (options.optimizer) return options.optimizer->name();
  return options.rule == OptimizerRule::adam && options.decoupled ? "adamw" : name_of(options.rule);
}

int moments_of(const UpdateOptions& options) {
  return static_cast<int>(Optimizers(options).element_states().size());
}

Betas betas_of(const UpdateOptions& options) {
  return {options.rule == OptimizerRule::sgd ? options.momentum : options.beta1, options.beta2};
}

void validate(const UpdateOptions& update) {
  const auto check_config = [](bool within, const char* field, double value, const char* expected) {
    if (!within) raise<ConfigError>("config: {} is {:f}; expected {}", field, value, expected);
  };
  for (const auto& [field, share] :
       {std::pair("update.beta1", update.beta1), std::pair("update.beta2", update.beta2),
        std::pair("update.momentum", update.momentum),
        std::pair("update.muon.momentum", update.muon.momentum)})
    check_config(share >= 0.0f && share < 1.0f, field, share, "a number in [0, 1)");
  check_config(update.dampening >= 0.0f && update.dampening <= 1.0f, "update.dampening",
               update.dampening, "a number in [0, 1]");
  const bool is_muon = update.rule == OptimizerRule::muon;
  for (const ParameterGroup& group : update.groups)
    if (group.by_adam && !(update.optimizer ? update.optimizer->others() != nullptr : is_muon))
      raise<ConfigError>(
          "config: parameter group '{}' says optimizer=adamw, the optimizer is {}; expected muon, "
          "whose matrices a group can leave to adamw",
          group.pattern, optimizer_name(update));
  if (update.momentum != 0.0f && update.rule != OptimizerRule::sgd)
    raise<ConfigError>(
        "config: update.momentum is {:f}, the optimizer is {}; expected sgd, or momentum 0; try {}",
        update.momentum, optimizer_name(update),
        is_muon ? "update.muon.momentum (--muon-momentum)" : "rule sgd (--optimizer sgd)");
  if (update.nesterov && update.rule != OptimizerRule::sgd)
    raise<ConfigError>("config: update.nesterov is on, the optimizer is {}; expected sgd; try {}",
                       optimizer_name(update),
                       is_muon ? "without it: update.muon.nesterov is on by default"
                               : "rule sgd (--optimizer sgd)");
  if (is_muon && !update.decoupled)
    throw ConfigError(
        "config: update.decoupled is off, the optimizer is muon; expected it on: an orthogonal "
        "step hides weight decay that is added to the gradient");
  if (update.rule == OptimizerRule::adafactor && !update.decoupled)
    throw ConfigError(
        "config: update.decoupled is off, the optimizer is adafactor; expected it on: a step "
        "does not grow with the gradient, and so it hides weight decay that is added to it");
  const AdafactorOptions& adafactor = update.adafactor;
  check_config(std::isfinite(adafactor.beta2_decay) && adafactor.beta2_decay <= 0.0f,
               "update.adafactor.beta2_decay", adafactor.beta2_decay,
               "a finite number of 0 or less");
  check_config(std::isfinite(adafactor.epsilon1) && adafactor.epsilon1 > 0.0f,
               "update.adafactor.epsilon1", adafactor.epsilon1, "a finite number above 0");
  check_config(std::isfinite(adafactor.epsilon2) && adafactor.epsilon2 >= 0.0f,
               "update.adafactor.epsilon2", adafactor.epsilon2, "a finite number from 0");
  check_config(std::isfinite(adafactor.clip) && adafactor.clip >= 1.0f, "update.adafactor.clip",
               adafactor.clip, "a finite number from 1");
  check_config(std::isfinite(update.muon.adam_rate) && update.muon.adam_rate >= 0.0f,
               "update.muon.adam_rate", update.muon.adam_rate, "a finite number from 0");
  if (update.nesterov && (update.momentum == 0.0f || update.dampening != 0.0f))
    raise<ConfigError>(
        "config: update.nesterov is on, momentum is {:f} and dampening {:f}; expected a momentum "
        "above 0 and no dampening; try momentum 0.9 (--momentum)",
        update.momentum, update.dampening);
  const auto from_zero = [](float x) { return std::isfinite(x) && x >= 0.0f; };
  check_config(from_zero(update.epsilon), "update.epsilon", update.epsilon,
               "a finite number from 0");
  check_config(from_zero(update.weight_decay), "update.weight_decay", update.weight_decay,
               "a finite number from 0");
  for (const ParameterGroup& group : update.groups) {
    if (group.pattern.empty() || group.pattern.find(';') != std::string::npos)
      raise<ConfigError>(
          "config: the pattern of a parameter group is '{}'; expected one without ';', "
          "like '*.bias'",
          group.pattern);
    check_config(from_zero(group.rate), "the rate of a parameter group", group.rate,
                 "a finite number from 0");
    check_config(from_zero(group.weight_decay.value_or(0.0f)), "the decay of a parameter group",
                 group.weight_decay.value_or(0.0f), "a finite number from 0");
  }
}

}  // namespace zg::zero
